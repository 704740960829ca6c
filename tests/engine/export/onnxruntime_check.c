/* A session of onnxruntime with a compiled model, through the C interface that its other languages call.
 *
 * onnxruntime_check LIBONNXRUNTIME MODEL.so GRAPH VERSION INPUT...: files of numbers; all tensors are float with the shape
 * that the model tells, outputs are written to the standard output, one after another. Version 1 registers the library as
 * Java and Triton do, who close it after the session, version 2 as C# does.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* Places of functions in the table of onnxruntime_c_api.h, of which no version moves one. */
enum {
    ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, REGISTER = 29, TENSOR_OF_DATA = 49,
    TENSOR_DATA = 51, CPU_MEMORY = 69, RELEASE_ENV = 92, RELEASE_SESSION = 95, RELEASE_VALUE = 96, RELEASE_OPTIONS = 100,
    REGISTER_2 = 228, VERSION = 16, MOST = 8
};

typedef void *(*function)();
static function *api;

static void check(void *status) {
    if (!status) return;
    fprintf(stderr, "%s\n", (const char *)api[ERROR_MESSAGE](status));
    exit(1);
}

static void *read_file(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    void *content = malloc(bytes + 1);
    if (!file || fread(content, 1, bytes, file) != bytes) exit(2);
    fclose(file);
    return content;
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    void *runtime = dlopen(arguments[1], RTLD_NOW), *described = dlopen(arguments[2], RTLD_NOW), *registered = 0;
    if (!runtime || !described) return fprintf(stderr, "%s\n", dlerror()), 2;
    void **base = ((void **(*)(void))dlsym(runtime, "OrtGetApiBase"))();
    api = ((function * (*)(unsigned)) base[0])(VERSION);
    const stowplan_tensor *(*input)(int) = (const stowplan_tensor *(*)(int))dlsym(described, "stowplan_input");
    const stowplan_tensor *(*output)(int) = (const stowplan_tensor *(*)(int))dlsym(described, "stowplan_output");
    void *env, *options, *session, *memory, *inputs[MOST] = {0}, *outputs[MOST] = {0};
    const char *names[2 * MOST] = {0};
    check(api[CREATE_ENV](3, "check", &env));
    check(api[CREATE_OPTIONS](&options));
    if (atoi(arguments[4]) == 1)
        check(api[REGISTER](options, arguments[2], &registered));
    else
        check(api[REGISTER_2](options, arguments[2]));
    check(api[CREATE_SESSION](env, arguments[3], options, &session));
    check(api[CPU_MEMORY](0, 0, &memory));
    size_t given = 0, taken = 0;
    for (const stowplan_tensor *t; given < MOST && (t = input((int)given)); given++) {
        void *content = read_file(arguments[5 + given], t->bytes);
        names[given] = t->name;
        check(api[TENSOR_OF_DATA](memory, content, (size_t)t->bytes, t->shape, (size_t)t->rank, t->dtype, &inputs[given]));
    }
    for (const stowplan_tensor *t; taken < MOST && (t = output((int)taken)); taken++) names[MOST + taken] = t->name;
    check(api[RUN](session, (void *)0, names, inputs, given, names + MOST, taken, outputs));
    for (size_t i = 0; i < taken; i++) {
        void *data;
        check(api[TENSOR_DATA](outputs[i], &data));
        fwrite(data, 1, output((int)i)->bytes, stdout);
        api[RELEASE_VALUE](outputs[i]);
    }
    api[RELEASE_SESSION](session);
    api[RELEASE_OPTIONS](options);
    api[RELEASE_ENV](env);
    if (registered) dlclose(registered);
    return 0;
}
