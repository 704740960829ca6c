/* C interface of a model that Stowplan compiled. See docs/library.md.
 *
 * An instance holds the memory of one inference and its threads; instances share the weights. One thread
 * at a time may use an instance; different instances are independent.
 */
#ifndef STOWPLAN_MODEL_H
#define STOWPLAN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stowplan stowplan;

typedef enum {
    STOWPLAN_OK = 0,
    STOWPLAN_OUT_OF_MEMORY = 1,
    STOWPLAN_NO_THREAD = 2,   /* the system starts no more threads */
    STOWPLAN_WRONG_CPU = 3,   /* the processor lacks instructions that the model was compiled for */
    STOWPLAN_BUSY = 4,        /* another thread is running this instance */
    STOWPLAN_FORKED = 5,      /* the instance was created before fork() and its threads are in the parent */
    STOWPLAN_BAD_ARGUMENT = 6,
    STOWPLAN_KERNEL_FAILED = 7
} stowplan_status;

enum {
    STOWPLAN_COPY_WEIGHTS = 1, /* copy the weights to huge pages once a process; else they are read where mapped */
    STOWPLAN_NO_AFFINITY = 2   /* leave the threads where the system puts them */
};

/* The numbers of onnx.TensorProto.DataType. */
typedef enum {
    STOWPLAN_FLOAT = 1, STOWPLAN_UINT8 = 2, STOWPLAN_INT8 = 3, STOWPLAN_UINT16 = 4, STOWPLAN_INT16 = 5,
    STOWPLAN_INT32 = 6, STOWPLAN_INT64 = 7, STOWPLAN_BOOL = 9, STOWPLAN_FLOAT16 = 10, STOWPLAN_DOUBLE = 11,
    STOWPLAN_UINT32 = 12, STOWPLAN_UINT64 = 13, STOWPLAN_BFLOAT16 = 16
} stowplan_dtype;

typedef struct {
    const char *name;
    const int64_t *shape; /* rank numbers, of an output the largest; the array is dense and row-major */
    int32_t rank;
    int32_t dtype;        /* a stowplan_dtype */
    uint64_t bytes;
} stowplan_tensor;

/* STOWPLAN_OK, or STOWPLAN_WRONG_CPU where this processor cannot run the model. */
stowplan_status stowplan_check(void);

/* Description of the model; JSON with names, shapes, the processor and digests. */
const char *stowplan_metadata(void);
int stowplan_input_count(void);
int stowplan_output_count(void);
/* NULL where there is no such index. */
const stowplan_tensor *stowplan_input(int index);
const stowplan_tensor *stowplan_output(int index);

/* Makes an instance. `threads` counts the caller; 0 and more than the plan's are the plan's own number.
 * Nothing is allocated after it returns. */
stowplan_status stowplan_create(stowplan **instance, int threads, unsigned flags);
void stowplan_destroy(stowplan *instance);

/* Memory that the model reads and writes, aligned to 64 byte, for as long as the instance lives. */
void *stowplan_input_memory(stowplan *instance, int index);
const void *stowplan_output_memory(stowplan *instance, int index);
/* Shape and bytes of an output of the last run; other than stowplan_output tells where the size of the output depends
 * on the elements of the inputs. */
const int64_t *stowplan_output_shape(stowplan *instance, int index);
uint64_t stowplan_output_bytes(stowplan *instance, int index);

/* Runs on the contents of the input memory. Outputs stay until the next run. */
stowplan_status stowplan_run(stowplan *instance);
/* Copies inputs in, runs, and copies outputs out, in the order of the model. */
stowplan_status stowplan_run_buffers(stowplan *instance, const void *const *inputs, void *const *outputs);

/* What a status means, in English. */
const char *stowplan_message(stowplan_status status);

#ifdef __cplusplus
}
#endif

#endif
