/* The model as a custom operator of onnxruntime: `RegisterCustomOps`, which its function
 * RegisterCustomOpsLibrary (`register_custom_ops_library` of Python and other languages) calls.
 *
 * The tables below have the places of onnxruntime_c_api.h, of which no version moves a function. OrtCustomOp is
 * that of version 16 (onnxruntime 1.16), the first in which a kernel that cannot be made says why; the runtime
 * reads no field that is newer than the version an operator names.
 */
#include <stdio.h>

enum { ORT_VERSION = 16, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, MESSAGE = 512, DIGITS = 8 };

typedef struct ort_status ort_status;   /* NULL: no error */
typedef struct ort_options ort_options; /* of a session */
typedef struct ort_domain ort_domain;
typedef struct ort_value ort_value;
typedef struct ort_shape ort_shape;
typedef struct ort_context ort_context; /* of one run */
typedef struct ort_info ort_info;
struct ort_operator;

struct ort_api {
    ort_status *(*create_status)(int code, const char *message);
    void *before_domains[25];
    ort_status *(*create_domain)(const char *name, ort_domain **out);
    ort_status *(*add_operator)(ort_domain *domain, const struct ort_operator *op);
    ort_status *(*add_domain)(ort_options *options, ort_domain *domain);
    void *before_data[22];
    ort_status *(*tensor_data)(ort_value *value, void **out);
    void *before_type[8];
    ort_status *(*shape_type)(const ort_shape *shape, int *out);
    ort_status *(*shape_rank)(const ort_shape *shape, size_t *out);
    ort_status *(*shape_sizes)(const ort_shape *shape, int64_t *out, size_t rank);
    void *before_shape[2];
    ort_status *(*tensor_shape)(const ort_value *value, ort_shape **out);
    void *before_inputs[24];
    ort_status *(*context_input)(const ort_context *context, size_t index, const ort_value **out);
    ort_status *(*context_output)(ort_context *context, size_t index, const int64_t *sizes, size_t rank, ort_value **out);
    void *before_release[7];
    void (*release_shape)(ort_shape *shape);
    void *before_entries[137];
    ort_status *(*has_entry)(const ort_options *options, const char *key, int *out);
    ort_status *(*entry)(const ort_options *options, const char *key, char *out, size_t *size);
};

#define HOLDS(field, number) _Static_assert(offsetof(struct ort_api, field) == (number) * sizeof(void *), #field)
HOLDS(create_domain, 26);
HOLDS(tensor_data, 51);
HOLDS(shape_type, 60);
HOLDS(tensor_shape, 65);
HOLDS(context_input, 90);
HOLDS(release_shape, 99);
HOLDS(has_entry, 237);

struct ort_api_base {
    const struct ort_api *(*api)(uint32_t version); /* NULL where the runtime is older */
    const char *(*version)(void);
};

struct ort_operator {
    uint32_t version;
    void *(*create)(const struct ort_operator *op, const struct ort_api *api, const ort_info *info); /* not called */
    const char *(*name)(const struct ort_operator *op);
    const char *(*provider)(const struct ort_operator *op); /* NULL: the CPU's */
    int (*input_type)(const struct ort_operator *op, size_t index);
    size_t (*input_count)(const struct ort_operator *op);
    int (*output_type)(const struct ort_operator *op, size_t index);
    size_t (*output_count)(const struct ort_operator *op);
    void (*compute)(void *kernel, ort_context *context); /* not called */
    void (*destroy)(void *kernel);
    int (*input_kind)(const struct ort_operator *op, size_t index); /* 0: required */
    int (*output_kind)(const struct ort_operator *op, size_t index);
    int (*input_memory)(const struct ort_operator *op, size_t index); /* 0: that of the provider */
    int (*variadic[4])(const struct ort_operator *op);
    ort_status *(*create_kernel)(const struct ort_operator *op, const struct ort_api *api, const ort_info *info, void **out);
    ort_status *(*compute_kernel)(void *kernel, ort_context *context);
};

/* The operator with the options of a session. Sessions with the same options share it, and it is never freed:
 * the runtime does not tell when its last session is gone. */
struct operator {
    struct ort_operator ort;
    const struct ort_api *api;
    int threads;
    unsigned flags;
    ort_domain *domain;
    struct operator *next;
};

struct kernel {
    const struct ort_api *api;
    stowplan *instance;
    pthread_mutex_t lock; /* runs of one session wait for each other */
};

static pthread_mutex_t operators_lock = PTHREAD_MUTEX_INITIALIZER;
static struct operator *operators;

static const char *operator_name(const struct ort_operator *op) { return (void)op, "CompiledModel"; }
static const char *operator_provider(const struct ort_operator *op) { return (void)op, (const char *)0; }
static size_t operator_inputs(const struct ort_operator *op) { return (void)op, (size_t)stowplan_program.inputs; }
static size_t operator_outputs(const struct ort_operator *op) { return (void)op, (size_t)stowplan_program.outputs; }
static int operator_zero(const struct ort_operator *op, size_t index) { return (void)op, (void)index, 0; }

static int operator_input(const struct ort_operator *op, size_t index) {
    (void)op;
    return stowplan_program.input[index].dtype;
}

static int operator_output(const struct ort_operator *op, size_t index) {
    (void)op;
    return stowplan_program.output[index].dtype;
}

/* ---- runs ---- */

static size_t write_shape(char *out, size_t room, const int64_t *sizes, size_t rank) {
    size_t at = 0;
    for (size_t i = 0; i < rank && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, i ? ",%lld" : "%lld", (long long)sizes[i]);
    return at;
}

/* An error unless a shape is that of a tensor of the model. */
static ort_status *check_shape(const struct ort_api *api, const stowplan_tensor *tensor, const ort_shape *shape) {
    int64_t sizes[64];
    size_t rank;
    int dtype, same;
    ort_status *failed = api->shape_type(shape, &dtype);
    if (failed || (failed = api->shape_rank(shape, &rank))) return failed;
    size_t shown = rank < 64 ? rank : 64;
    if ((failed = api->shape_sizes(shape, sizes, shown))) return failed;
    same = dtype == tensor->dtype && rank == (size_t)tensor->rank;
    for (size_t i = 0; i < shown && same; i++) same = sizes[i] == tensor->shape[i];
    if (same) return 0;
    char text[MESSAGE], wanted[MESSAGE / 4] = "", found[MESSAGE / 4] = "";
    write_shape(wanted, sizeof wanted, tensor->shape, (size_t)tensor->rank);
    write_shape(found, sizeof found, sizes, shown);
    snprintf(text, sizeof text,
             "input '%.128s': expected element type %d and shape [%s], found %d and [%s]; the model was compiled for fixed shapes",
             tensor->name, tensor->dtype, wanted, dtype, found);
    return api->create_status(ORT_INVALID_ARGUMENT, text);
}

static ort_status *read_input(struct kernel *k, ort_context *context, int index) {
    const struct ort_api *api = k->api;
    const stowplan_tensor *tensor = stowplan_input(index);
    const ort_value *value = 0;
    ort_shape *shape;
    void *data;
    ort_status *failed = api->context_input(context, (size_t)index, &value);
    if (failed) return failed;
    if (!value) return api->create_status(ORT_INVALID_ARGUMENT, "an input of the model is missing");
    if ((failed = api->tensor_shape(value, &shape))) return failed;
    failed = check_shape(api, tensor, shape);
    api->release_shape(shape);
    if (failed || (failed = api->tensor_data((ort_value *)value, &data))) return failed;
    if (tensor->bytes) memcpy(stowplan_input_memory(k->instance, index), data, tensor->bytes);
    return 0;
}

static ort_status *write_output(struct kernel *k, ort_context *context, int index) {
    const stowplan_tensor *tensor = stowplan_output(index);
    ort_value *value = 0;
    void *data;
    const int64_t *shape = stowplan_output_shape(k->instance, index);
    uint64_t bytes = stowplan_output_bytes(k->instance, index);
    ort_status *failed = k->api->context_output(context, (size_t)index, shape, (size_t)tensor->rank, &value);
    if (failed || !value) return failed; /* NULL: nobody reads it */
    if ((failed = k->api->tensor_data(value, &data))) return failed;
    if (bytes) memcpy(data, stowplan_output_memory(k->instance, index), bytes);
    return 0;
}

static ort_status *compute_kernel(void *kernel, ort_context *context) {
    struct kernel *k = kernel;
    ort_status *failed = 0;
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < stowplan_input_count() && !failed; i++) failed = read_input(k, context, i);
    if (!failed) {
        stowplan_status status = stowplan_run(k->instance);
        if (status) failed = k->api->create_status(ORT_FAIL, stowplan_message(status));
    }
    for (int i = 0; i < stowplan_output_count() && !failed; i++) failed = write_output(k, context, i);
    pthread_mutex_unlock(&k->lock);
    return failed;
}

static ort_status *create_kernel(const struct ort_operator *op, const struct ort_api *api, const ort_info *info, void **out) {
    const struct operator *o = (const struct operator *)op;
    (void)info;
    struct kernel *k = calloc(1, sizeof *k);
    stowplan_status status = k ? stowplan_create(&k->instance, o->threads, o->flags) : STOWPLAN_OUT_OF_MEMORY;
    if (status) {
        free(k);
        return api->create_status(ORT_FAIL, stowplan_message(status));
    }
    k->api = api;
    pthread_mutex_init(&k->lock, 0);
    *out = k;
    return 0;
}

static void destroy_kernel(void *kernel) {
    struct kernel *k = kernel;
    if (!k) return;
    stowplan_destroy(k->instance);
    free(k);
}

/* ---- registration ---- */

/* The number that a session's option has, `usual` where it is not set. */
static ort_status *read_option(const struct ort_api *api, const ort_options *options, const char *key, int most, int *out) {
    int has = 0, number = 0;
    char text[DIGITS] = "", message[MESSAGE];
    size_t size = sizeof text;
    ort_status *failed = api->has_entry(options, key, &has);
    if (failed || !has) return failed;
    if ((failed = api->entry(options, key, text, &size))) return failed;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) number = number * 10 + (*at - '0');
    if (at != text && !*at && number <= most) return *out = number, (ort_status *)0;
    snprintf(message, sizeof message, "session option %s: expected a number from 0 to %d, found '%s'", key, most, text);
    return api->create_status(ORT_INVALID_ARGUMENT, message);
}

static ort_status *make_operator(const struct ort_api *api, int threads, unsigned flags, struct operator **out) {
    struct operator *o = calloc(1, sizeof *o);
    if (!o) return api->create_status(ORT_FAIL, stowplan_message(STOWPLAN_OUT_OF_MEMORY));
    o->ort = (struct ort_operator){
        .version = ORT_VERSION,
        .name = operator_name,
        .provider = operator_provider,
        .input_type = operator_input,
        .input_count = operator_inputs,
        .output_type = operator_output,
        .output_count = operator_outputs,
        .destroy = destroy_kernel,
        .input_kind = operator_zero,
        .output_kind = operator_zero,
        .input_memory = operator_zero,
        .create_kernel = create_kernel,
        .compute_kernel = compute_kernel,
    };
    o->api = api;
    o->threads = threads;
    o->flags = flags;
    ort_status *failed = api->create_domain(stowplan_program.domain, &o->domain);
    if (!failed) failed = api->add_operator(o->domain, &o->ort);
    if (failed) return free(o), failed;
    o->next = operators;
    *out = operators = o;
    return 0;
}

API ort_status *RegisterCustomOps(ort_options *options, const struct ort_api_base *base) {
    const struct ort_api *api = base->api(ORT_VERSION);
    if (!api) {
        char text[MESSAGE];
        snprintf(text, sizeof text, "the model needs onnxruntime 1.%d or newer, found %.32s", ORT_VERSION, base->version());
        return base->api(1)->create_status(ORT_FAIL, text);
    }
    int threads = 0, copy = 1, affinity = 1;
    ort_status *failed = read_option(api, options, "stowplan.threads", MAX_THREADS, &threads);
    if (!failed) failed = read_option(api, options, "stowplan.copy_weights", 1, &copy);
    if (!failed) failed = read_option(api, options, "stowplan.affinity", 1, &affinity);
    if (failed) return failed;
    unsigned flags = (copy ? STOWPLAN_COPY_WEIGHTS : 0) | (affinity ? 0 : STOWPLAN_NO_AFFINITY);
    pthread_mutex_lock(&operators_lock);
    struct operator *o = operators;
    while (o && (o->api != api || o->threads != threads || o->flags != flags)) o = o->next;
    if (!o) failed = make_operator(api, threads, flags, &o);
    pthread_mutex_unlock(&operators_lock);
    return failed ? failed : api->add_domain(options, o->domain);
}
