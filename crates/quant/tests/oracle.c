// Answers for llama.cpp's block formats over a pipe; make_goldens.py builds and drives it.
// A request is six int32: operation (0 dequantise, 1 quantise), type, rows, row length, importance
// given, payload bytes; then the payload and the importances. A reply is an int64 length and bytes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ggml.h"

// Exported, but not in the table of types: no tensor of a file is read back from it.
void dequantize_row_q8_K(const void *x, float *y, int64_t k);

static void reply(const void *data, int64_t bytes) {
    fwrite(&bytes, sizeof bytes, 1, stdout);
    fwrite(data, 1, (size_t)bytes, stdout);
    fflush(stdout);
}

static void *take(size_t bytes) {
    void *data = malloc(bytes + 1);
    if (fread(data, 1, bytes, stdin) != bytes) exit(1);
    return data;
}

int main(void) {
    int32_t req[6];
    while (fread(req, sizeof req, 1, stdin) == 1) {
        enum ggml_type type = (enum ggml_type)req[1];
        int64_t rows = req[2], width = req[3], elems = rows * width;
        void *payload = take((size_t)req[5]);
        float *importance = req[4] ? take(sizeof(float) * (size_t)width) : NULL;
        if (req[0] == 0) {
            ggml_to_float_t to_float =
                type == GGML_TYPE_Q8_K ? dequantize_row_q8_K : ggml_get_type_traits(type)->to_float;
            float *out = malloc(sizeof(float) * (size_t)elems);
            if (to_float) to_float(payload, out, elems);
            reply(out, to_float ? (int64_t)sizeof(float) * elems : 0);
            free(out);
        } else {
            int64_t bytes = rows * (int64_t)ggml_row_size(type, width);
            void *out = calloc(1, (size_t)bytes);
            ggml_quantize_chunk(type, payload, out, 0, rows, width, importance);
            reply(out, bytes);
            free(out);
        }
        free(payload);
        free(importance);
    }
    return 0;
}
