/* Instances of a compiled model: memory, threads, runs. `runtime.ll` is this file compiled; `make library-runtime`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "program.h"

#define API __attribute__((visibility("default")))

/* Pieces of the mailbox: see `app.kernels.cpu.runtime.driver`. */
enum { LINE = 16, STOPPED = 2 * LINE + 1, THREADS = 3 * LINE, GATE = 32, CONDITION = 16, ROW = 5, JUMP = -1 };
enum { MARGIN = 4096, HUGE_PAGE = 2 << 20, CACHE_LINE = 64, MAX_THREADS = 256, NO_CORE = -1 };

struct stowplan {
    int threads, flags, helped, core, busy, helpers;
    pid_t process;
    int64_t *mailbox, *rows, *arguments, *ticks;
    int64_t control[7]; /* of the driver */
    char *base[SPACES];
    void *mapped;
    size_t mapped_bytes;
    cpu_set_t allowed;
    pthread_t helper[MAX_THREADS];
};

struct start {
    stowplan *instance;
    int number;
};

extern int stowplan_raised __attribute__((visibility("hidden"))); /* of `error_path.ll`: a kernel raised */
static pthread_mutex_t weights_lock = PTHREAD_MUTEX_INITIALIZER;
static int weights_users;
static void *weights_mapped;
static char *weights_copy;
static size_t weights_bytes_mapped;

/* ---- processor ---- */

#ifdef __x86_64__
enum { TILE_DATA = 18, REQUEST_STATE = 0x1023 }; /* a bit of XCR0; ARCH_REQ_XCOMP_PERM */

static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "a"(leaf), "c"(subleaf));
}

static int processor_fits(void) {
    const struct program *p = &stowplan_program;
    uint32_t found[4];
    cpuid(0, 0, found);
    uint32_t highest = found[0];
    for (int64_t i = 0; i < p->features; i++) {
        const struct feature *f = &p->feature[i];
        if (f->leaf < 0x80000000u && f->leaf > highest) return 0;
        cpuid(f->leaf, f->subleaf, found);
        if ((found[f->reg] & f->mask) != f->mask) return 0;
    }
    if (p->state) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & (uint32_t)p->state) != (uint32_t)p->state) return 0;
    }
    /* Linux lets a process use the registers of AMX tiles once it has asked for them: arch_prctl(2). */
    if (p->state >> TILE_DATA & 1 && syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA)) return 0;
    return 1;
}
#else
/* Instructions that not every processor of the architecture has are bits of AT_HWCAP: getauxval(3). */
static int processor_fits(void) {
    uint64_t needed = (uint64_t)stowplan_program.state;
    return (getauxval(AT_HWCAP) & needed) == needed;
}
#endif

API stowplan_status stowplan_check(void) { return processor_fits() ? STOWPLAN_OK : STOWPLAN_WRONG_CPU; }

/* ---- memory ---- */

static size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Bytes that start on a huge page, with a margin on both sides that may be read. */
static char *map_pages(size_t bytes, void **mapped, size_t *mapped_bytes) {
    size_t size = up(bytes + 2 * (size_t)MARGIN, HUGE_PAGE) + 2 * (size_t)HUGE_PAGE;
    char *raw = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return 0;
    if (bytes >= HUGE_PAGE) madvise(raw, size, MADV_HUGEPAGE);
    *mapped = raw;
    *mapped_bytes = size;
    return (char *)up((uintptr_t)raw + MARGIN, HUGE_PAGE);
}

static char *take_weights(int copy) {
    const struct program *p = &stowplan_program;
    if (!copy) return (char *)p->weights;
    pthread_mutex_lock(&weights_lock);
    if (weights_users == 0) {
        weights_copy = map_pages(p->weight_bytes, &weights_mapped, &weights_bytes_mapped);
        if (weights_copy) {
            memcpy(weights_copy, p->weights, p->weight_bytes);
            mprotect(weights_mapped, weights_bytes_mapped, PROT_READ);
        }
    }
    char *found = weights_copy;
    if (found) weights_users++;
    pthread_mutex_unlock(&weights_lock);
    return found;
}

static void give_back_weights(void) {
    pthread_mutex_lock(&weights_lock);
    if (--weights_users == 0) {
        munmap(weights_mapped, weights_bytes_mapped);
        weights_copy = 0;
    }
    pthread_mutex_unlock(&weights_lock);
}

/* ---- threads ---- */

static void *serve(void *argument) {
    struct start *start = argument;
    stowplan *s = start->instance;
    int number = start->number;
    free(start);
    stowplan_help(s->mailbox, number, s->threads);
    return 0;
}

/* Keeps the helpers off the core of the caller, beside which systems like to wake them. */
static void make_way(stowplan *s) {
    int core = sched_getcpu();
    if (core == s->core) return;
    s->core = core;
    cpu_set_t others = s->allowed;
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &others);
    int left = 0;
    for (int i = 0; i < CPU_SETSIZE && !left; i++) left = CPU_ISSET(i, &others);
    for (int i = 1; i <= s->helpers && left; i++) pthread_setaffinity_np(s->helper[i], sizeof others, &others);
}

static stowplan_status start_helpers(stowplan *s) {
    int64_t *gate = s->mailbox + THREADS + s->threads * LINE;
    for (int i = 1; i < s->threads; i++) {
        pthread_mutex_init((pthread_mutex_t *)(gate + i * GATE), 0);
        pthread_cond_init((pthread_cond_t *)(gate + i * GATE + CONDITION), 0);
    }
    for (int i = 1; i < s->threads; i++) {
        struct start *start = malloc(sizeof *start);
        if (!start) return STOWPLAN_OUT_OF_MEMORY;
        start->instance = s;
        start->number = i;
        if (pthread_create(&s->helper[i], 0, serve, start)) {
            free(start);
            return STOWPLAN_NO_THREAD;
        }
        s->helpers = i;
    }
    return STOWPLAN_OK;
}

/* ---- instances ---- */

API void stowplan_destroy(stowplan *s) {
    if (!s) return;
    if (s->mailbox && s->process == getpid()) {
        __atomic_store_n(&s->mailbox[STOPPED], 1, __ATOMIC_SEQ_CST);
        if (s->helpers) stowplan_wake(s->mailbox, s->helpers + 1);
        for (int i = 1; i <= s->helpers; i++) pthread_join(s->helper[i], 0);
    }
    if (s->base[IN_WEIGHTS] && s->flags & STOWPLAN_COPY_WEIGHTS) give_back_weights();
    if (s->mapped) munmap(s->mapped, s->mapped_bytes);
    free(s);
}

static void write_tables(stowplan *s) {
    const struct program *p = &stowplan_program;
    for (int64_t i = 0; i < p->arguments; i++)
        s->arguments[i] = p->argument[i].offset + (int64_t)(intptr_t)s->base[p->argument[i].space];
    for (int64_t i = 0; i < p->rows * ROW; i++) s->rows[i] = p->row[i];
    for (int64_t i = 0; i < p->rows; i++) {
        if (p->row[i * ROW + 1] != JUMP) s->rows[i * ROW] = (int64_t)(intptr_t)p->kernel[p->row[i * ROW]];
        s->helped |= s->threads > 1 && p->row[i * ROW + 4];
    }
    for (int i = 0; i < s->threads; i++) s->mailbox[THREADS + i * LINE] = 1; /* asleep */
    const int64_t control[7] = {(intptr_t)s->mailbox,   s->helped ? s->threads : 1, (intptr_t)s->rows,
                                (intptr_t)s->arguments, 0, p->rows, (intptr_t)s->ticks};
    memcpy(s->control, control, sizeof control);
}

API stowplan_status stowplan_create(stowplan **instance, int threads, unsigned flags) {
    const struct program *p = &stowplan_program;
    if (!instance) return STOWPLAN_BAD_ARGUMENT;
    *instance = 0;
    if (flags & ~(unsigned)(STOWPLAN_COPY_WEIGHTS | STOWPLAN_NO_AFFINITY) || threads < 0) return STOWPLAN_BAD_ARGUMENT;
    stowplan_status fits = stowplan_check();
    if (fits) return fits;
    stowplan *s = calloc(1, sizeof *s);
    if (!s) return STOWPLAN_OUT_OF_MEMORY;
    s->threads = threads && threads < p->threads ? threads : (int)p->threads;
    s->flags = (int)flags;
    s->core = NO_CORE;
    s->process = getpid();
    size_t mailbox = up(8 * (THREADS + (size_t)s->threads * (LINE + GATE)), 2 * CACHE_LINE);
    size_t rows = up(8 * ROW * (size_t)p->rows, CACHE_LINE), arguments = up(8 * (size_t)p->arguments + 8, CACHE_LINE);
    size_t ticks = up(8 * (size_t)p->rows + 8, CACHE_LINE);
    size_t arena = up(p->arena_bytes, CACHE_LINE) + MARGIN, buffers = up(p->buffer_bytes, CACHE_LINE) + MARGIN;
    char *at = map_pages(arena + buffers + mailbox + rows + arguments + ticks, &s->mapped, &s->mapped_bytes);
    s->base[IN_WEIGHTS] = at ? take_weights(flags & STOWPLAN_COPY_WEIGHTS) : 0;
    if (!s->base[IN_WEIGHTS]) {
        stowplan_destroy(s);
        return STOWPLAN_OUT_OF_MEMORY;
    }
    s->base[IN_ARENA] = at;
    s->base[IN_BUFFERS] = at + arena;
    s->mailbox = (int64_t *)(at + arena + buffers);
    s->rows = (int64_t *)((char *)s->mailbox + mailbox);
    s->arguments = (int64_t *)((char *)s->rows + rows);
    s->ticks = (int64_t *)((char *)s->arguments + arguments);
    memset(at - MARGIN, 0, MARGIN + arena + buffers); /* the pages are there before the first run */
    write_tables(s);
    sched_getaffinity(0, sizeof s->allowed, &s->allowed);
    stowplan_status status = start_helpers(s);
    if (status) {
        stowplan_destroy(s);
        return status;
    }
    *instance = s;
    return STOWPLAN_OK;
}

static stowplan_status begin(stowplan *s) {
    if (!s) return STOWPLAN_BAD_ARGUMENT;
    if (s->helpers && s->process != getpid()) return STOWPLAN_FORKED;
    return __atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQUIRE) ? STOWPLAN_BUSY : STOWPLAN_OK;
}

static stowplan_status run(stowplan *s) {
    if (s->helped && !(s->flags & STOWPLAN_NO_AFFINITY)) make_way(s);
    stowplan_lead(s->control);
    return __atomic_load_n(&stowplan_raised, __ATOMIC_RELAXED) ? STOWPLAN_KERNEL_FAILED : STOWPLAN_OK;
}

static void end(stowplan *s) { __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE); }

static char *memory(const stowplan *s, struct place at) { return s->base[at.space] + at.offset; }

API stowplan_status stowplan_run(stowplan *s) {
    stowplan_status status = begin(s);
    if (status) return status;
    status = run(s);
    end(s);
    return status;
}

API stowplan_status stowplan_run_buffers(stowplan *s, const void *const *inputs, void *const *outputs) {
    const struct program *p = &stowplan_program;
    for (int64_t i = 0; i < p->inputs; i++)
        if (!inputs || !inputs[i]) return STOWPLAN_BAD_ARGUMENT;
    for (int64_t i = 0; i < p->outputs; i++)
        if (!outputs || !outputs[i]) return STOWPLAN_BAD_ARGUMENT;
    stowplan_status status = begin(s);
    if (status) return status;
    for (int64_t i = 0; i < p->inputs; i++) memcpy(memory(s, p->input_place[i]), inputs[i], p->input[i].bytes);
    status = run(s);
    for (int i = 0; i < p->outputs && !status; i++)
        memcpy(outputs[i], memory(s, p->output_place[i]), stowplan_output_bytes(s, i));
    end(s);
    return status;
}

/* ---- description ---- */

API const char *stowplan_metadata(void) { return stowplan_program.metadata; }
API int stowplan_input_count(void) { return (int)stowplan_program.inputs; }
API int stowplan_output_count(void) { return (int)stowplan_program.outputs; }

API const stowplan_tensor *stowplan_input(int index) {
    return index < 0 || index >= stowplan_program.inputs ? 0 : &stowplan_program.input[index];
}

API const stowplan_tensor *stowplan_output(int index) {
    return index < 0 || index >= stowplan_program.outputs ? 0 : &stowplan_program.output[index];
}

API void *stowplan_input_memory(stowplan *s, int index) {
    return s && stowplan_input(index) ? memory(s, stowplan_program.input_place[index]) : 0;
}

API const void *stowplan_output_memory(stowplan *s, int index) {
    return s && stowplan_output(index) ? memory(s, stowplan_program.output_place[index]) : 0;
}

API const int64_t *stowplan_output_shape(stowplan *s, int index) {
    const stowplan_tensor *tensor = stowplan_output(index);
    if (!s || !tensor) return 0;
    struct place at = stowplan_program.output_shape[index];
    return at.space == IN_NUMBER ? tensor->shape : (const int64_t *)memory(s, at);
}

API uint64_t stowplan_output_bytes(stowplan *s, int index) {
    const int64_t *shape = stowplan_output_shape(s, index);
    if (!shape) return 0;
    const stowplan_tensor *tensor = stowplan_output(index);
    uint64_t bytes = tensor->bytes;
    for (int i = 0; i < tensor->rank && bytes; i++) bytes = bytes / (uint64_t)tensor->shape[i] * (uint64_t)shape[i];
    return bytes;
}

API const char *stowplan_message(stowplan_status status) {
    switch (status) {
    case STOWPLAN_OK: return "no error";
    case STOWPLAN_OUT_OF_MEMORY: return "the system gave no memory for the instance";
    case STOWPLAN_NO_THREAD: return "the system started no more threads";
    case STOWPLAN_WRONG_CPU: return "this processor lacks instructions that the model was compiled for; see \"processor\" in the metadata";
    case STOWPLAN_BUSY: return "another thread is running this instance; create an instance for each thread";
    case STOWPLAN_FORKED: return "the instance was created before fork(); create one in the child";
    case STOWPLAN_BAD_ARGUMENT: return "an argument is NULL, negative, or an unknown flag";
    case STOWPLAN_KERNEL_FAILED: return "a kernel failed";
    }
    return "unknown status";
}

#include "custom_operator.c" /* one module, of which `runtime.ll` is the code */
