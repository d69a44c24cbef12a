/* Many questions at once, whose answers share every step: batch MODEL.gguf "a prompt" "another one" … */
#include <stdio.h>
#include <string.h>

#include <tokkata.h>

#define MOST 32

int main(int argc, char **argv) {
    int n = argc - 2 < MOST ? argc - 2 : MOST;
    tokkata_model_options options = TOKKATA_MODEL_OPTIONS_INIT;
    options.n_seqs = n > 0 ? (uint32_t)n : 1;
    tokkata_model *model = NULL;
    if (n < 1 || tokkata_model_open(argv[1], strlen(argv[1]), &options, &model) < 0) return 1;
    tokkata_generate_options few = TOKKATA_GENERATE_OPTIONS_INIT;
    few.max_tokens = 48;
    tokkata_request *requests[MOST];
    for (int i = 0; i < n; i++) {
        uint32_t ids[1024];
        size_t len = 0;
        if (tokkata_tokenize(model, argv[2 + i], strlen(argv[2 + i]), TOKKATA_ADD_SPECIAL, ids, 1024, &len) < 0) return 1;
        if (tokkata_request_tokens(model, ids, len, &few, &requests[i]) < 0) return 1;
    }
    for (int i = 0; i < n; i++) {
        tokkata_event event = TOKKATA_EVENT_INIT;
        printf("%s", argv[2 + i]);
        while (tokkata_next_event(requests[i], -1, &event) == TOKKATA_OK) fwrite(event.text, 1, event.text_len, stdout);
        puts("\n--");
        tokkata_request_free(requests[i]);
    }
    tokkata_model_free(model);
    return 0;
}
