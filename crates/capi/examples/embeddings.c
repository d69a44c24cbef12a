/* How alike two texts are: embeddings MODEL.gguf "a text" "another one". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tokkata.h>

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    tokkata_model_options options = TOKKATA_MODEL_OPTIONS_INIT;
    options.purpose = TOKKATA_FOR_VECTORS;
    tokkata_model *model = NULL;
    if (tokkata_model_open(argv[1], strlen(argv[1]), &options, &model) < 0) return 1;
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    if (tokkata_model_get_info(model, &info) < 0) return 1;
    float *vectors = malloc(2 * info.vector_width * sizeof *vectors);
    size_t needed = 0;
    for (int i = 0; vectors && i < 2; i++)
        if (tokkata_embed(model, argv[2 + i], strlen(argv[2 + i]), 1, vectors + (size_t)i * info.vector_width,
                          info.vector_width, &needed) < 0)
            return 1;
    float dot = 0;
    for (uint32_t i = 0; vectors && i < info.vector_width; i++) dot += vectors[i] * vectors[info.vector_width + i];
    printf("%.4f\n", (double)dot);
    free(vectors);
    tokkata_model_free(model);
    return 0;
}
