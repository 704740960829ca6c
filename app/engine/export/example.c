/* Runs the model once. Inputs are read from the files that are named, as raw numbers, and are zero without;
 * outputs are written to output-0.bin and on. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static void check(stowplan_status status) {
    if (status) {
        fprintf(stderr, "%s\n", stowplan_message(status));
        exit(1);
    }
}

int main(int count, char **files) {
    stowplan *model;
    check(stowplan_create(&model, 0, 0));
    for (int i = 0; i < stowplan_input_count() && i + 1 < count; i++) {
        FILE *file = fopen(files[i + 1], "rb");
        size_t bytes = stowplan_input(i)->bytes;
        if (!file || fread(stowplan_input_memory(model, i), 1, bytes, file) != bytes) {
            fprintf(stderr, "%s: expected %zu bytes for input %s\n", files[i + 1], bytes, stowplan_input(i)->name);
            return 1;
        }
        fclose(file);
    }
    check(stowplan_run(model));
    for (int i = 0; i < stowplan_output_count(); i++) {
        char name[32];
        snprintf(name, sizeof name, "output-%d.bin", i);
        FILE *file = fopen(name, "wb");
        size_t bytes = stowplan_output_bytes(model, i);
        if (!file || fwrite(stowplan_output_memory(model, i), 1, bytes, file) != bytes) return 1;
        fclose(file);
        printf("%s: %s, %zu byte\n", name, stowplan_output(i)->name, bytes);
    }
    stowplan_destroy(model);
    return 0;
}
