/* Answers what it is given: chat MODEL.gguf "a question". Build: cc chat.c $(pkg-config --cflags --libs tokkata) */
#include <stdio.h>
#include <string.h>

#include <tokkata.h>

static int failed(void) {
    tokkata_error *error = NULL;
    const char *text = NULL;
    size_t len = 0;
    if (tokkata_error_take(&error) == TOKKATA_OK && error && tokkata_error_message(error, &text, &len) == TOKKATA_OK)
        fprintf(stderr, "%.*s\n", (int)len, text);
    tokkata_error_free(error);
    return 1;
}

static int32_t print(void *user, const tokkata_event *event) {
    (void)user;
    fwrite(event->text, 1, event->text_len, stdout);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    tokkata_model *model = NULL;
    if (tokkata_model_open(argv[1], strlen(argv[1]), NULL, &model) < 0) return failed();
    /* A question with quotes or control characters would have to be escaped. */
    char ask[4096];
    int len = snprintf(ask, sizeof ask, "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}", argv[2]);
    uint32_t ids[4096];
    size_t n = 0;
    if (tokkata_chat_tokens(model, ask, (size_t)len, ids, 4096, &n) < 0) return failed();
    tokkata_request *request = NULL;
    if (tokkata_request_tokens(model, ids, n, NULL, &request) < 0) return failed();
    if (tokkata_request_run(request, print, NULL) < 0) return failed();
    puts("");
    tokkata_request_free(request);
    tokkata_model_free(model);
    return 0;
}
