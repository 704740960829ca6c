/* What `image.py` writes into a library beside the kernels: the program as constants. */
#include <stdint.h>

#include "model.h"

enum { IN_NUMBER = 0, IN_ARENA = 1, IN_WEIGHTS = 2, IN_BUFFERS = 3, SPACES = 4 };

struct place {
    int64_t space, offset;
};

/* A bit of CPUID that must be set. */
struct feature {
    uint32_t leaf, subleaf, reg, mask;
};

struct program {
    int64_t threads, arena_bytes, buffer_bytes, weight_bytes;
    int64_t rows, arguments, inputs, outputs, features, state; /* state: bits that XCR0, or AT_HWCAP on ARM, must have */
    const int64_t *row;           /* 5 numbers each: kernel, arity, units, first argument, shared; or a jump of the driver */
    const struct place *argument;
    void *const *kernel;          /* by the first number of a row */
    const stowplan_tensor *input, *output;
    const struct place *input_place, *output_place;
    const struct place *output_shape; /* IN_NUMBER where every run gives the shape of the tensor */
    const struct feature *feature;
    const char *weights;
    const char *metadata;
    const char *domain; /* of the operator that stands for the model in onnxruntime; it has the program's digest */
};

extern const struct program stowplan_program;

/* The driver of the CPU kernels (`app.kernels.cpu.runtime.driver`). */
extern void stowplan_lead(const int64_t *control); /* mailbox, threads, rows, arguments, first, last, ticks */
extern void stowplan_help(int64_t *mailbox, int64_t thread, int64_t threads);
extern void stowplan_wake(int64_t *mailbox, int64_t threads);
