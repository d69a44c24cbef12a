/* Every capability of the first design's 41 functions, each under its old name. */
#include <math.h>

#include "c/check.h"

static int32_t count(void *user, const tokkata_event *event) {
    if (event->kind == TOKKATA_EVENT_TOKEN) *(int *)user += 1;
    return 0;
}

static int generate(tokkata_model *model, const uint32_t *ids, size_t n, tokkata_generate_options *options) {
    tokkata_request *request = NULL;
    int tokens = 0;
    OK(tokkata_request_tokens(model, ids, n, options, &request));
    OK(tokkata_request_run(request, count, &tokens));
    OK(tokkata_request_free(request));
    return tokens;
}

typedef struct listened {
    uint32_t tokens[32];
    int n;
    uint32_t drafted, accepted;
} listened;

static int32_t keep(void *user, const tokkata_event *event) {
    listened *all = user;
    if (event->kind == TOKKATA_EVENT_TOKEN && all->n < 32) all->tokens[all->n++] = event->token;
    all->drafted = event->n_drafted;
    all->accepted = event->n_accepted;
    return 0;
}

static void listen_to(tokkata_model *model, const uint32_t *ids, size_t n, tokkata_generate_options *options, listened *out) {
    tokkata_request *request = NULL;
    OK(tokkata_request_tokens(model, ids, n, options, &request));
    OK(tokkata_request_run(request, keep, out));
    OK(tokkata_request_free(request));
}

static int32_t count_segments(void *user, const tokkata_event *event) {
    *(int *)user += event->kind == TOKKATA_EVENT_SEGMENT;
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    size_t needed = 0, n = 0, position = 0;
    uint32_t ids[256], token = 0;
    static char text[1 << 16];

    /* akunu_load_model */
    tokkata_model_options choices = TOKKATA_MODEL_OPTIONS_INIT;
    choices.purpose = TOKKATA_FOR_BOTH;
    choices.n_ctx = 256;
    tokkata_model *model = open_model(argv[1], &choices);
    /* akunu_get_error */
    CHECK(tokkata_token_bytes(model, 0xffffffff, NULL, 0, &needed) == TOKKATA_ERROR_ARGUMENT);
    tokkata_error *error = NULL;
    OK(tokkata_error_take(&error));
    CHECK(error != NULL);
    OK(tokkata_error_free(error));
    /* akunu_get_config, akunu_model_memory, akunu_embedding_dim */
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    OK(tokkata_model_get_info(model, &info));
    CHECK(info.n_ctx == 256 && info.memory_bytes > 0 && info.vector_width == info.n_embd && info.writes_text == 1);
    OK(tokkata_model_metadata(model, text, sizeof text, &needed));
    CHECK(strstr(text, "general.architecture") != NULL);
    /* akunu_encode, akunu_token_count */
    OK(tokkata_tokenize(model, "Tell me about cats.", 19, TOKKATA_ADD_SPECIAL, NULL, 0, &n));
    OK(tokkata_tokenize(model, "Tell me about cats.", 19, TOKKATA_ADD_SPECIAL, ids, 256, &needed));
    CHECK(n == needed && n > 3);
    /* akunu_decode_token */
    OK(tokkata_token_bytes(model, ids[n - 1], text, sizeof text, &needed));
    CHECK(needed > 0);

    /* akunu_generate */
    tokkata_sampling greedy = TOKKATA_SAMPLING_INIT;
    greedy.temperature = 0;
    tokkata_generate_options options = TOKKATA_GENERATE_OPTIONS_INIT;
    options.max_tokens = 8;
    options.ignore_end = 1;
    options.sampling = &greedy;
    CHECK(generate(model, ids, n, &options) == 8);
    /* akunu_generate_continue, akunu_get_position */
    tokkata_session *session = NULL;
    OK(tokkata_session_open(model, &session));
    options.session = session;
    CHECK(generate(model, ids, n, &options) == 8);
    OK(tokkata_session_position(session, &position));
    CHECK(position == n + 7);
    OK(tokkata_session_tokens(session, ids, 256, &n));
    OK(tokkata_tokenize(model, " And dogs?", 10, 0, ids + n, 64, &needed));
    n += needed;
    CHECK(generate(model, ids, n, &options) == 8);
    /* akunu_reset */
    OK(tokkata_session_rollback(session, 0));
    OK(tokkata_session_position(session, &position));
    CHECK(position == 0);
    options.session = NULL;
    /* akunu_grammar_create, akunu_grammar_create_from_schema, akunu_grammar_create_json, akunu_grammar_free */
    tokkata_grammar *gbnf = NULL, *schema = NULL, *json = NULL;
    OK(tokkata_grammar_new(model, TOKKATA_GRAMMAR_GBNF, "root ::= \"a\" | \"b\"", 18, &gbnf));
    const char *source = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, \"required\": [\"a\"]}";
    OK(tokkata_grammar_new(model, TOKKATA_GRAMMAR_JSON_SCHEMA, source, strlen(source), &schema));
    OK(tokkata_grammar_new(model, TOKKATA_GRAMMAR_JSON_SCHEMA, "{}", 2, &json));
    /* akunu_generate_grammar */
    options.grammar = gbnf;
    options.ignore_end = 0;
    CHECK(generate(model, ids, n, &options) >= 1);
    /* akunu_generate_grammar_continue */
    options.grammar = schema;
    options.session = session;
    options.max_tokens = 0;
    CHECK(generate(model, ids, n, &options) >= 3);
    OK(tokkata_grammar_free(gbnf));
    OK(tokkata_grammar_free(schema));
    OK(tokkata_grammar_free(json));
    OK(tokkata_session_rollback(session, 0));

    /* akunu_prefill, akunu_decode_step */
    float *logits = malloc(info.n_vocab * sizeof *logits);
    OK(tokkata_prefill(session, ids, n, logits, info.n_vocab, &needed));
    tokkata_sample_options draw = TOKKATA_SAMPLE_OPTIONS_INIT;
    draw.sampling = &greedy;
    OK(tokkata_sample(logits, info.n_vocab, &draw, &token));
    tokkata_feed feed = {session, &token, 1, TOKKATA_LOGITS_LAST, 1};
    OK(tokkata_step(&feed, 1, logits, info.n_vocab, &needed));
    /* akunu_gpu_temperature_scale, akunu_gpu_repetition_penalty */
    tokkata_sampling hot = TOKKATA_SAMPLING_INIT;
    hot.temperature = 1.5f;
    hot.repeat_penalty = 1.3f;
    draw.sampling = &hot;
    draw.recent = ids;
    draw.n_recent = n;
    OK(tokkata_sample(logits, info.n_vocab, &draw, &token));
    /* akunu_chain_decode */
    uint32_t chained[6];
    OK(tokkata_chain(session, token, &greedy, chained, 6, &needed));
    CHECK(needed > 0);

    /* akunu_embed, akunu_embed_text */
    float *vector = malloc(info.vector_width * sizeof *vector);
    OK(tokkata_embed(model, "a cat", 5, 1, vector, info.vector_width, &needed));
    double length = 0;
    for (size_t i = 0; i < needed; i++) length += (double)vector[i] * vector[i];
    CHECK(needed == info.vector_width && length > 0.999 && length < 1.001);
    tokkata_request *request = NULL;
    tokkata_event event = TOKKATA_EVENT_INIT;
    OK(tokkata_request_vector(model, ids, n, &request));
    int values = 0;
    while (tokkata_next_event(request, -1, &event) == TOKKATA_OK) values += event.kind == TOKKATA_EVENT_VALUES;
    CHECK(values > 0);
    OK(tokkata_request_free(request));

    /* akunu_format_chat, akunu_chat_template */
    const char *ask = "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"Hi\"}]}";
    OK(tokkata_apply_template(model, ask, strlen(ask), text, sizeof text - 1, &needed));
    text[needed] = 0;
    CHECK(strstr(text, "Be kind.") != NULL);
    OK(tokkata_template_source(model, text, sizeof text, &needed));
    /* akunu_profile_decode_step, akunu_profile_label */
    OK(tokkata_profile(model, 16, NULL, 0, &needed));
    OK(tokkata_profile(model, 16, text, sizeof text - 1, &needed));
    text[needed] = 0;
    CHECK(strstr(text, "\"label\": \"layer.0.") != NULL && strstr(text, "\"ns\":") != NULL);
    /* akunu_tensor_count, akunu_tensor_name, akunu_tensor_dtype, akunu_tensor_raw_dtype */
    tokkata_tensor tensor = TOKKATA_TENSOR_INIT;
    size_t tensors = 0;
    while (tokkata_model_tensor(model, tensors, &tensor) == TOKKATA_OK) {
        CHECK(tensor.name_len > 0 && tensor.type_len > 0 && tensor.n_dims > 0 && tensor.dims[0] > 0);
        tensors += 1;
    }
    CHECK(tensors == info.n_tensors && tensors > 3);

    OK(tokkata_session_free(session));
    /* akunu_free_model */
    OK(tokkata_model_free(model));
    choices.purpose = TOKKATA_FOR_TEXT;
    choices.speculation = "none";
    choices.speculation_len = 4;
    tokkata_model *plain = open_model(argv[1], &choices);
    free(logits);
    free(vector);

    /* akunu_set_speculation: whoever guesses, the text is the same. */
    OK(tokkata_tokenize(plain, "one two three one two three one two", 35, TOKKATA_ADD_SPECIAL, ids, 256, &n));
    options.grammar = NULL;
    options.session = NULL;
    options.max_tokens = 24;
    options.ignore_end = 1;
    listened said = {{0}, 0, 0, 0}, guessed = {{0}, 0, 0, 0};
    listen_to(plain, ids, n, &options, &said);
    OK(tokkata_model_free(plain));
    choices.speculation = "ngram";
    choices.speculation_len = 5;
    choices.draft_max = 4;
    plain = open_model(argv[1], &choices);
    listen_to(plain, ids, n, &options, &guessed);
    CHECK(said.n == 24 && guessed.n == 24 && memcmp(said.tokens, guessed.tokens, sizeof said.tokens) == 0);
    CHECK(said.drafted == 0 && guessed.accepted <= guessed.drafted);
    OK(tokkata_model_free(plain));
    choices.speculation = "nobody";
    choices.speculation_len = 6;
    CHECK(tokkata_model_open(argv[1], strlen(argv[1]), &choices, &plain) == TOKKATA_ERROR_ARGUMENT);

    /* akunu_is_whisper, akunu_transcribe, akunu_transcribe_pcm, akunu_transcribe_stream, akunu_transcribe_pcm_stream,
       akunu_set_timestamps */
    tokkata_model_options hearing = TOKKATA_MODEL_OPTIONS_INIT;
    hearing.purpose = TOKKATA_FOR_SPEECH;
    hearing.n_seqs = 1;
    tokkata_model *speech = open_model(argv[2], &hearing);
    OK(tokkata_model_get_info(speech, &info));
    CHECK(info.hears == 1);
    tokkata_transcribe_options quick = TOKKATA_TRANSCRIBE_OPTIONS_INIT;
    quick.beams = 1;
    quick.temperature_step = 0;
    quick.language = "en";
    quick.language_len = 2;
    int segments = 0;
    OK(tokkata_transcribe(speech, argv[3], strlen(argv[3]), &quick, &request));
    OK(tokkata_request_run(request, count_segments, &segments));
    CHECK(segments > 0);
    OK(tokkata_request_free(request));
    static float tone[16000];
    for (int i = 0; i < 16000; i++) tone[i] = (float)sin(i * 0.1) / 3;
    quick.no_timestamps = 1;
    OK(tokkata_transcribe_pcm(speech, tone, 16000, 16000, &quick, &request));
    segments = 0;
    OK(tokkata_request_run(request, count_segments, &segments));
    CHECK(segments > 0);
    OK(tokkata_request_free(request));
    OK(tokkata_model_free(speech));
    puts("first design: ok");
    return 0;
}
