/* Vectors and scores of texts, of models that give nothing else. */
#include <math.h>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    tokkata_model_options choices = TOKKATA_MODEL_OPTIONS_INIT;
    choices.purpose = TOKKATA_FOR_VECTORS;
    tokkata_model *model = open_model(argv[1], &choices);
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    OK(tokkata_model_get_info(model, &info));
    CHECK(info.writes_text == 0 && info.vector_width == info.n_embd && info.vector_width <= 256);
    float one[256], two[256];
    size_t needed = 0;
    OK(tokkata_embed(model, "the cat", 7, 0, NULL, 0, &needed));
    CHECK(needed == info.vector_width);
    CHECK(tokkata_embed(model, "the cat", 7, 0, one, 3, &needed) == TOKKATA_ERROR_BUFFER);
    OK(tokkata_embed(model, "the cat", 7, 0, one, 256, &needed));
    OK(tokkata_embed(model, "the cat", 7, 1, two, 256, &needed));
    double length = 0, dot = 0;
    for (size_t i = 0; i < needed; i++) length += (double)one[i] * one[i], dot += (double)one[i] * two[i];
    CHECK(fabs(dot - sqrt(length)) < 1e-4);
    tokkata_text texts[3] = {{"the cat sat on the mat", 22}, {"the red dog ran", 15}, {"", 0}};
    float scores[3], alone = 0;
    CHECK(tokkata_rerank(model, "who sat?", 8, texts, 3, scores, 3, &needed) == TOKKATA_ERROR_UNSUPPORTED);
    tokkata_request *request = NULL;
    uint32_t id = 1;
    CHECK(tokkata_request_tokens(model, &id, 1, NULL, &request) == TOKKATA_ERROR_UNSUPPORTED);
    OK(tokkata_model_free(model));

    choices.pooling = TOKKATA_POOL_RANK;
    model = open_model(argv[1], &choices);
    OK(tokkata_rerank(model, "who sat?", 8, texts, 3, NULL, 0, &needed));
    CHECK(needed == 3);
    OK(tokkata_rerank(model, "who sat?", 8, texts, 3, scores, 3, &needed));
    OK(tokkata_rerank(model, "who sat?", 8, texts + 1, 1, &alone, 1, &needed));
    CHECK(alone == scores[1] && scores[0] != scores[1] && isfinite(scores[2]));
    OK(tokkata_rerank(model, "who sat?", 8, NULL, 0, NULL, 0, &needed));
    CHECK(needed == 0);
    OK(tokkata_model_free(model));
    puts("values: ok");
    return 0;
}
