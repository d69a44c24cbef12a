/* A conversation with a model: opened, looked at, asked in JSON and in structs, cancelled. */
#include "check.h"

static int events;

static int32_t hear(void *user, const tokkata_event *event) {
    if (event->kind == TOKKATA_EVENT_TOKEN) *(int *)user += 1;
    events += 1;
    return 0;
}

static int32_t refuse(void *user, uint64_t done, uint64_t total) {
    (void)user;
    return done > total / 4;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(tokkata_abi_version() == TOKKATA_ABI_VERSION);
    tokkata_model *model = open_model(argv[1], NULL);
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    OK(tokkata_model_get_info(model, &info));
    CHECK(info.n_vocab > 0 && info.n_ctx > 0 && info.n_seqs == 4 && info.writes_text == 1 && info.size == sizeof info);
    CHECK(info.has_template == 1);

    /* Two calls: how much, then all of it; too little writes nothing. */
    uint32_t ids[64] = {7};
    size_t needed = 0;
    OK(tokkata_tokenize(model, "Hello there", 11, TOKKATA_ADD_SPECIAL, NULL, 0, &needed));
    CHECK(needed > 1 && needed < 64);
    CHECK(tokkata_tokenize(model, "Hello there", 11, TOKKATA_ADD_SPECIAL, ids, 1, &needed) == TOKKATA_ERROR_BUFFER);
    CHECK(ids[0] == 7);
    size_t n = needed;
    OK(tokkata_tokenize(model, "Hello there", 11, TOKKATA_ADD_SPECIAL, ids, 64, &needed));
    char text[4096];
    OK(tokkata_detokenize(model, ids, n, 0, text, sizeof text, &needed));
    CHECK(needed == 11 && memcmp(text, "Hello there", 11) == 0);

    /* A request as JSON, whole. */
    const char *ask = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"temperature\": 0, \"max_tokens\": 12}";
    tokkata_request *request = NULL;
    tokkata_event event = TOKKATA_EVENT_INIT;
    OK(tokkata_request_json(model, ask, strlen(ask), &request));
    OK(tokkata_next_event(request, -1, &event));
    CHECK(event.kind == TOKKATA_EVENT_JSON && event.text_len > 100);
    CHECK(tokkata_next_event(request, -1, &event) == TOKKATA_END);
    OK(tokkata_request_free(request));

    /* The same as a stream of chunks. */
    ask = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"stream\": true, \"max_tokens\": 12}";
    OK(tokkata_request_json(model, ask, strlen(ask), &request));
    int chunks = 0;
    while (tokkata_next_event(request, -1, &event) == TOKKATA_OK) chunks += 1;
    CHECK(chunks > 2);
    OK(tokkata_request_free(request));

    /* The prompt of a conversation, and the short way with callbacks. */
    OK(tokkata_chat_tokens(model, ask, strlen(ask), ids, 64, &n));
    OK(tokkata_apply_template(model, ask, strlen(ask), text, sizeof text, &needed));
    tokkata_sampling greedy = TOKKATA_SAMPLING_INIT;
    greedy.temperature = 0;
    tokkata_generate_options options = TOKKATA_GENERATE_OPTIONS_INIT;
    options.max_tokens = 9;
    options.ignore_end = 1;
    options.sampling = &greedy;
    options.logprobs = 3;
    OK(tokkata_request_tokens(model, ids, n, &options, &request));
    int tokens = 0;
    OK(tokkata_request_run(request, hear, &tokens));
    CHECK(tokens == 9 && events > 10);
    CHECK(tokkata_next_event(request, 0, &event) == TOKKATA_END);
    OK(tokkata_request_free(request));

    /* Events one by one; a timeout; cancelled in the middle. */
    options.max_tokens = 0;
    OK(tokkata_request_tokens(model, ids, n, &options, &request));
    int status = tokkata_next_event(request, 0, &event);
    CHECK(status == TOKKATA_TIMEOUT || status == TOKKATA_OK);
    do OK(tokkata_next_event(request, 5000000000, &event)); while (event.kind != TOKKATA_EVENT_TOKEN);
    CHECK(event.n_top == 3 && event.top[0].token == event.token && event.top[0].logprob == event.logprob);
    OK(tokkata_cancel(request));
    do OK(tokkata_next_event(request, -1, &event)); while (event.kind != TOKKATA_EVENT_FINISHED);
    CHECK(event.finish == TOKKATA_FINISH_CANCELLED && event.n_prompt == n);
    OK(tokkata_request_free(request));

    /* What is wrong is told by name. */
    ask = "{\"messages\": [], \"temperature\": 0}";
    CHECK(tokkata_request_json(model, ask, strlen(ask), &request) == TOKKATA_ERROR_ARGUMENT);
    tokkata_error *error = NULL;
    OK(tokkata_error_take(&error));
    const char *field = NULL;
    OK(tokkata_error_field(error, &field, &needed));
    CHECK(needed == 8 && memcmp(field, "messages", 8) == 0);
    int32_t code = 0;
    OK(tokkata_error_code(error, &code));
    CHECK(code == TOKKATA_ERROR_ARGUMENT);
    OK(tokkata_error_free(error));
    OK(tokkata_error_take(&error));
    CHECK(error == NULL);

    /* A load that is cancelled. */
    tokkata_model_options choices = TOKKATA_MODEL_OPTIONS_INIT;
    choices.progress = refuse;
    tokkata_model *other = NULL;
    CHECK(tokkata_model_open(argv[1], strlen(argv[1]), &choices, &other) == TOKKATA_ERROR_CANCELLED);
    CHECK(other == NULL);

    OK(tokkata_model_free(model));
    CHECK(tokkata_model_free(model) == TOKKATA_ERROR_HANDLE);
    puts("chat: ok");
    return 0;
}
