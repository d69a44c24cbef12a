/* Whatever is wrong gives a status: null, freed twice, other kinds, wrong sizes, re-entry, another process. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int32_t again(void *user, const tokkata_event *event) {
    (void)event;
    tokkata_event other = TOKKATA_EVENT_INIT;
    CHECK(tokkata_next_event(user, 0, &other) == TOKKATA_ERROR_BUSY);
    OK(tokkata_cancel(user));
    return 0;
}

static void *waits(void *user) {
    tokkata_event event = TOKKATA_EVENT_INIT;
    int status;
    while ((status = tokkata_next_event(user, -1, &event)) == TOKKATA_OK || status == TOKKATA_ERROR_BUSY) continue;
    return NULL;
}

static void *fails(void *user) {
    (void)user;
    CHECK(tokkata_model_forget(NULL) == TOKKATA_ERROR_HANDLE);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    tokkata_model *model = NULL;
    tokkata_request *request = NULL;
    size_t needed = 0;
    uint32_t ids[64];
    tokkata_event event = TOKKATA_EVENT_INIT;

    CHECK(tokkata_model_open(NULL, 5, NULL, &model) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_model_open("x", 1, NULL, NULL) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_model_open("\xff\xfe", 2, NULL, &model) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_model_open("/nowhere.gguf", 13, NULL, &model) == TOKKATA_ERROR_FILE);
    CHECK(tokkata_model_open_bytes("PK\x03\x04", 4, NULL, &model) == TOKKATA_ERROR_FILE);
    CHECK(tokkata_model_free(NULL) == TOKKATA_OK && tokkata_request_free(NULL) == TOKKATA_OK);
    CHECK(tokkata_model_free((tokkata_model *)&needed) == TOKKATA_ERROR_HANDLE);
    CHECK(tokkata_model_forget(NULL) == TOKKATA_ERROR_HANDLE);
    CHECK(tokkata_error_take(NULL) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_sample(NULL, 0, NULL, ids) == TOKKATA_ERROR_ARGUMENT);

    tokkata_model_options options = TOKKATA_MODEL_OPTIONS_INIT;
    options.size = 0;
    CHECK(tokkata_model_open(argv[1], strlen(argv[1]), &options, &model) == TOKKATA_ERROR_ARGUMENT);
    struct { tokkata_model_options known; uint32_t more[4]; } newer = {TOKKATA_MODEL_OPTIONS_INIT, {0, 0, 0, 0}};
    newer.known.size = sizeof newer;
    newer.more[2] = 1;
    CHECK(tokkata_model_open(argv[1], strlen(argv[1]), &newer.known, &model) == TOKKATA_ERROR_ARGUMENT);
    newer.more[2] = 0;
    OK(tokkata_model_open(argv[1], strlen(argv[1]), &newer.known, &model));
    OK(tokkata_model_free(model));
    options.size = 8; /* an older program */
    model = open_model(argv[1], &options);

    size_t n = 0;
    OK(tokkata_tokenize(model, "Hello", 5, 0, ids, 64, &n));
    CHECK(tokkata_tokenize(model, "Hello", 5, 0, NULL, 3, &needed) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_tokenize(model, "Hello", 5, 0, ids, 64, NULL) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_tokenize(model, "Hello", SIZE_MAX, 0, ids, 64, &needed) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_detokenize(model, ids, SIZE_MAX / 2, 0, NULL, 0, &needed) == TOKKATA_ERROR_ARGUMENT);
    uint32_t beyond = 0xffffffff;
    CHECK(tokkata_detokenize(model, &beyond, 1, 0, NULL, 0, &needed) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_request_tokens(model, &beyond, 1, NULL, &request) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_request_json(model, "{", 1, &request) == TOKKATA_ERROR_ARGUMENT);
    tokkata_generate_options many = TOKKATA_GENERATE_OPTIONS_INIT;
    many.logprobs = 21;
    CHECK(tokkata_request_tokens(model, ids, n, &many, &request) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_request_json(model, "[1]", 3, &request) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_request_vector(model, ids, n, &request) == TOKKATA_ERROR_UNSUPPORTED);
    CHECK(tokkata_next_event((tokkata_request *)model, 0, &event) == TOKKATA_ERROR_HANDLE);

    /* An empty prompt fails as an event. */
    OK(tokkata_request_tokens(model, NULL, 0, NULL, &request));
    CHECK(tokkata_next_event(request, -1, &event) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_next_event(request, -1, &event) == TOKKATA_END);
    OK(tokkata_request_free(request));

    /* A callback that calls back; an event of no size loses nothing. */
    tokkata_generate_options long_answer = TOKKATA_GENERATE_OPTIONS_INIT;
    long_answer.ignore_end = 1;
    OK(tokkata_request_tokens(model, ids, n, &long_answer, &request));
    event.size = 3;
    CHECK(tokkata_next_event(request, 0, &event) == TOKKATA_ERROR_ARGUMENT);
    event.size = sizeof event;
    OK(tokkata_request_run(request, again, request));
    OK(tokkata_request_free(request));
    CHECK(tokkata_request_free(request) == TOKKATA_ERROR_HANDLE);
    CHECK(tokkata_cancel(request) == TOKKATA_ERROR_HANDLE);

    /* What went wrong on one thread is not told on another. */
    pthread_t thread;
    tokkata_error *error = NULL;
    OK(tokkata_error_take(&error));
    OK(tokkata_error_free(error));
    CHECK(pthread_create(&thread, NULL, fails, NULL) == 0 && pthread_join(thread, NULL) == 0);
    OK(tokkata_error_take(&error));
    CHECK(error == NULL);

    /* A second thread is refused while one waits, and may free what the other waits for. */
    OK(tokkata_request_tokens(model, ids, n, &long_answer, &request));
    CHECK(pthread_create(&thread, NULL, waits, request) == 0);
    int32_t second = TOKKATA_OK;
    while (second == TOKKATA_OK || second == TOKKATA_TIMEOUT) second = tokkata_next_event(request, 0, &event);
    CHECK(second == TOKKATA_ERROR_BUSY);
    OK(tokkata_request_free(request));
    CHECK(pthread_join(thread, NULL) == 0);

    /* A session that answers is busy, and so is one in a second request. */
    tokkata_session *session = NULL;
    OK(tokkata_session_open(model, &session));
    long_answer.session = session;
    OK(tokkata_request_tokens(model, ids, n, &long_answer, &request));
    do OK(tokkata_next_event(request, -1, &event)); while (event.kind != TOKKATA_EVENT_TOKEN);
    CHECK(tokkata_session_position(session, &needed) == TOKKATA_ERROR_BUSY);
    OK(tokkata_cancel(request));
    waits(request);
    OK(tokkata_session_position(session, &needed));
    OK(tokkata_request_free(request));

    /* A child of this process has no threads. */
    pid_t child = fork();
    if (child == 0) {
        int fine = tokkata_session_position(session, &needed) == TOKKATA_ERROR_FORKED &&
                   tokkata_request_tokens(model, ids, n, NULL, &request) == TOKKATA_ERROR_FORKED &&
                   tokkata_session_free(session) == TOKKATA_OK && tokkata_model_free(model) == TOKKATA_OK;
        _exit(fine ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    OK(tokkata_session_free(session));
    OK(tokkata_model_free(model));
    puts("misuse: ok");
    return 0;
}
