/* The runtime of libraries with a program and a driver written by hand, for builds that watch memory and threads.
 *
 * The program: y = |x + w|. The driver runs rows alone; its helpers sleep until they are told to stop, as the real ones do.
 */
#include "runtime.c" /* first: it asks for all of the C library */

#undef NDEBUG
#include <assert.h>

int stowplan_raised;

enum { N = 1000, ROUNDS = 1000, MEMBERS = 4 };

static void add(const float *x, const float *w, float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] + w[i];
}

static void absolute(const float *x, float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] < 0 ? -x[i] : x[i];
}

enum { X = 0, Y = 4096, BUFFER_BYTES = 8192, SUM = 0, ARENA_BYTES = 4096 };

static const float weights[N] = {[0] = -3, [1] = 2, [N - 1] = -0.5f};
static const int64_t rows[] = {0, 3, N, 0, 1, 1, 2, N, 3, 1};
static const struct place arguments[] = {{IN_BUFFERS, X}, {IN_WEIGHTS, 0}, {IN_ARENA, SUM}, {IN_ARENA, SUM}, {IN_BUFFERS, Y}};
static const int64_t shape[] = {N};
static const stowplan_tensor inputs[] = {{"x", shape, 1, STOWPLAN_FLOAT, 4 * N}};
static const stowplan_tensor outputs[] = {{"y", shape, 1, STOWPLAN_FLOAT, 4 * N}};
static const struct place input_places[] = {{IN_BUFFERS, X}}, output_places[] = {{IN_BUFFERS, Y}};
static const struct place output_shapes[] = {{IN_NUMBER, 0}};
static void *const kernels[] = {(void *)add, (void *)absolute};
const struct program stowplan_program = {
    .threads = 3,
    .arena_bytes = ARENA_BYTES,
    .buffer_bytes = BUFFER_BYTES,
    .weight_bytes = sizeof weights,
    .rows = 2,
    .arguments = 5,
    .inputs = 1,
    .outputs = 1,
    .row = rows,
    .argument = arguments,
    .kernel = kernels,
    .input = inputs,
    .output = outputs,
    .input_place = input_places,
    .output_place = output_places,
    .output_shape = output_shapes,
    .weights = (const char *)weights,
    .metadata = "{}",
    .domain = "stowplan.check",
};

void stowplan_lead(const int64_t *control) {
    const int64_t *row = (const int64_t *)control[2], *argument = (const int64_t *)control[3];
    for (int64_t i = control[4]; i < control[5]; i++) {
        const int64_t *r = row + i * ROW, *a = argument + r[3];
        if (r[1] == 3)
            ((void (*)(int64_t, int64_t, int64_t, int64_t, int64_t))r[0])(a[0], a[1], a[2], 0, r[2]);
        else
            ((void (*)(int64_t, int64_t, int64_t, int64_t))r[0])(a[0], a[1], 0, r[2]);
    }
}

static int64_t *gate_of(int64_t *mailbox, int64_t thread, int64_t threads) {
    return mailbox + THREADS + threads * LINE + thread * GATE;
}

void stowplan_help(int64_t *mailbox, int64_t thread, int64_t threads) {
    int64_t *gate = gate_of(mailbox, thread, threads);
    pthread_mutex_lock((pthread_mutex_t *)gate);
    while (!__atomic_load_n(&mailbox[STOPPED], __ATOMIC_SEQ_CST))
        pthread_cond_wait((pthread_cond_t *)(gate + CONDITION), (pthread_mutex_t *)gate);
    pthread_mutex_unlock((pthread_mutex_t *)gate);
}

static int64_t gates; /* threads of the instances that are made, as the mailbox counts them */

void stowplan_wake(int64_t *mailbox, int64_t threads) {
    for (int64_t i = 1; i < threads; i++) {
        int64_t *gate = gate_of(mailbox, i, gates);
        pthread_mutex_lock((pthread_mutex_t *)gate);
        pthread_cond_signal((pthread_cond_t *)(gate + CONDITION));
        pthread_mutex_unlock((pthread_mutex_t *)gate);
    }
}

static void check(stowplan *model, float start) {
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = start - (float)i / 3;
    const void *given[] = {x};
    void *taken[] = {y};
    assert(stowplan_run_buffers(model, given, taken) == STOWPLAN_OK);
    for (int i = 0; i < N; i++) assert(y[i] == (x[i] + weights[i] < 0 ? -(x[i] + weights[i]) : x[i] + weights[i]));
}

static void *member(void *number) {
    for (int round = 0; round < ROUNDS / 10; round++) {
        stowplan *model;
        assert(stowplan_create(&model, 3, (unsigned)(round % 4)) == STOWPLAN_OK);
        for (int i = 0; i < 3; i++) check(model, (float)(round + 7 * *(int *)number) - 2.5f);
        stowplan_destroy(model);
    }
    return 0;
}

static void *contender(void *model) {
    for (int i = 0; i < ROUNDS; i++) {
        stowplan_status status = stowplan_run(model);
        assert(status == STOWPLAN_OK || status == STOWPLAN_BUSY);
    }
    return 0;
}

/* Pages of address space: neighbouring mappings become one, so that their number tells nothing. */
static long pages(void) {
    long found = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert(file && fscanf(file, "%ld", &found) == 1);
    fclose(file);
    return found;
}

static void together(void *(*work)(void *), void *shared) {
    pthread_t threads[MEMBERS];
    int numbers[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) {
        numbers[i] = i;
        assert(!pthread_create(&threads[i], 0, work, shared ? shared : &numbers[i]));
    }
    for (int i = 0; i < MEMBERS; i++) pthread_join(threads[i], 0);
}

int main(void) {
    stowplan *model;
    long before = 0;
    gates = 3;
    for (int round = 0; round < ROUNDS + 20; round++) {
        if (round == 20) before = pages();
        assert(stowplan_create(&model, 3, (unsigned)(round % 4)) == STOWPLAN_OK);
        assert(stowplan_run(model) == STOWPLAN_OK);
        stowplan_destroy(model);
    }
    assert(pages() <= before + ROUNDS * 16); /* an instance has more than 1000 pages */
    together(member, 0);
    assert(stowplan_create(&model, 3, 0) == STOWPLAN_OK);
    together(contender, model);
    check(model, 1);
    stowplan_destroy(model);
    stowplan_destroy(0);
    assert(stowplan_create(&model, -1, 0) == STOWPLAN_BAD_ARGUMENT && !model);
    assert(!stowplan_input(1) && !stowplan_output(-1) && !stowplan_input_memory(0, 0));
    puts("done");
    return 0;
}
