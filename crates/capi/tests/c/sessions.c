/* Sessions, steps by hand, batches, logits, grammars, draws: what one holds is what one fed. */
#include <math.h>

#include "check.h"

static uint32_t best(const float *logits, size_t n) {
    uint32_t at = 0;
    for (size_t i = 1; i < n; i++) if (logits[i] > logits[at]) at = (uint32_t)i;
    return at;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    tokkata_model_options choices = TOKKATA_MODEL_OPTIONS_INIT;
    choices.n_logit_rows = 8;
    choices.threads = 1;
    choices.n_ctx = 128;
    tokkata_model *model = open_model(argv[1], &choices);
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    OK(tokkata_model_get_info(model, &info));
    size_t width = info.n_vocab, needed = 0, n = 0;
    uint32_t ids[64];
    OK(tokkata_tokenize(model, "Once upon a time there was", 26, TOKKATA_ADD_SPECIAL, ids, 64, &n));
    CHECK(n > 4);

    /* By hand: a prompt, then tokens one by one, must be what a request says. */
    float *logits = malloc(8 * width * sizeof *logits);
    tokkata_session *session = NULL;
    OK(tokkata_session_open(model, &session));
    OK(tokkata_prefill(session, ids, n, NULL, 0, &needed));
    CHECK(needed == width);
    OK(tokkata_prefill(session, ids, n, logits, width, &needed));
    uint32_t by_hand[6];
    for (int i = 0; i < 6; i++) {
        by_hand[i] = best(logits, width);
        tokkata_feed feed = {session, &by_hand[i], 1, TOKKATA_LOGITS_LAST, 1};
        OK(tokkata_step(&feed, 1, logits, width, &needed));
    }
    size_t position = 0;
    OK(tokkata_session_position(session, &position));
    CHECK(position == n + 6);
    tokkata_sampling greedy = TOKKATA_SAMPLING_INIT;
    greedy.temperature = 0;
    tokkata_generate_options options = TOKKATA_GENERATE_OPTIONS_INIT;
    options.sampling = &greedy;
    options.max_tokens = 6;
    options.ignore_end = 1;
    tokkata_request *request = NULL;
    tokkata_event event = TOKKATA_EVENT_INIT;
    OK(tokkata_request_tokens(model, ids, n, &options, &request));
    for (int i = 0; tokkata_next_event(request, -1, &event) == TOKKATA_OK;)
        if (event.kind == TOKKATA_EVENT_TOKEN) { CHECK(event.token == by_hand[i]); i += 1; }
    OK(tokkata_request_free(request));

    /* Back, on a copy, saved and read again: the same logits, bit for bit. */
    OK(tokkata_session_rollback(session, n));
    tokkata_session *copy = NULL, *read = NULL;
    OK(tokkata_session_fork(session, &copy));
    OK(tokkata_session_save(session, argv[2], strlen(argv[2])));
    OK(tokkata_session_load(model, argv[2], strlen(argv[2]), &read));
    tokkata_feed three[3] = {
        {session, by_hand, 1, TOKKATA_LOGITS_LAST, 1},
        {copy, by_hand, 1, TOKKATA_LOGITS_LAST, 1},
        {read, by_hand, 1, TOKKATA_LOGITS_LAST, 1},
    };
    OK(tokkata_step(three, 3, logits, 3 * width, &needed));
    CHECK(needed == 3 * width);
    CHECK(best(logits, width) == by_hand[1]);
    CHECK(memcmp(logits, logits + width, width * sizeof *logits) == 0);
    CHECK(memcmp(logits, logits + 2 * width, width * sizeof *logits) == 0);
    CHECK(tokkata_step(three, 3, logits, width, &needed) == TOKKATA_ERROR_BUFFER);
    tokkata_feed twice[2] = {three[0], three[0]};
    CHECK(tokkata_step(twice, 2, logits, 2 * width, &needed) == TOKKATA_ERROR_BUSY);
    OK(tokkata_session_position(session, &position));
    CHECK(position == n + 1);
    uint32_t held[64];
    OK(tokkata_session_tokens(read, held, 64, &needed));
    CHECK(needed == n + 1 && memcmp(held, ids, n * sizeof *ids) == 0 && held[n] == by_hand[0]);

    /* A chain without coming back, and appending beside other requests. */
    uint32_t chained[5];
    size_t chained_len = 0;
    OK(tokkata_chain(copy, by_hand[1], &greedy, chained, 4, &chained_len));
    CHECK(chained_len == 4 && memcmp(chained, by_hand + 2, 4 * sizeof *chained) == 0);
    OK(tokkata_session_append(session, by_hand + 1, 2));
    OK(tokkata_session_position(session, &position));
    CHECK(position == n + 3);
    CHECK(tokkata_session_rollback(session, 1000) == TOKKATA_ERROR_UNSUPPORTED);

    /* Logits of every token, as values of a request. */
    OK(tokkata_request_logits(model, ids, n, &request));
    size_t rows = 0;
    while (tokkata_next_event(request, -1, &event) == TOKKATA_OK)
        if (event.kind == TOKKATA_EVENT_VALUES) { CHECK(event.width == width); rows += event.n_values / width; }
    CHECK(rows == n);
    OK(tokkata_request_free(request));

    /* A grammar: as a mask by hand, and for a request. */
    tokkata_grammar *grammar = NULL;
    OK(tokkata_grammar_new(model, TOKKATA_GRAMMAR_REGEX, "(yes|no)", 8, &grammar));
    tokkata_matcher *matcher = NULL;
    OK(tokkata_matcher_new(grammar, &matcher));
    uint32_t mask[8192];
    OK(tokkata_matcher_mask(matcher, mask, 8192, &needed));
    CHECK(needed == (width + 31) / 32);
    tokkata_sample_options draw = TOKKATA_SAMPLE_OPTIONS_INIT;
    draw.mask = mask;
    draw.n_mask = needed;
    uint32_t token = 0;
    OK(tokkata_sample(logits, width, &draw, &token));
    CHECK(mask[token / 32] >> (token % 32) & 1);
    OK(tokkata_matcher_accept(matcher, token));
    OK(tokkata_matcher_rollback(matcher, 1));
    CHECK(tokkata_matcher_rollback(matcher, 1) == TOKKATA_ERROR_ARGUMENT);
    OK(tokkata_matcher_free(matcher));
    options.grammar = grammar;
    options.ignore_end = 0;
    options.max_tokens = 20;
    OK(tokkata_request_tokens(model, ids, n, &options, &request));
    char said[64];
    size_t len = 0;
    while (tokkata_next_event(request, -1, &event) == TOKKATA_OK)
        if (event.text_len && len + event.text_len < sizeof said) {
            memcpy(said + len, event.text, event.text_len);
            len += event.text_len;
        }
    CHECK((len == 3 && memcmp(said, "yes", 3) == 0) || (len == 2 && memcmp(said, "no", 2) == 0));
    OK(tokkata_request_free(request));
    OK(tokkata_grammar_free(grammar));

    /* Draws: greedy is the largest; a logit that is no number is refused; the seed decides. */
    tokkata_sample_options plain = TOKKATA_SAMPLE_OPTIONS_INIT;
    plain.sampling = &greedy;
    OK(tokkata_sample(logits, width, &plain, &token));
    CHECK(token == best(logits, width));
    uint32_t again = 0;
    OK(tokkata_sample(logits, width, NULL, &token));
    tokkata_sampling usual = TOKKATA_SAMPLING_INIT;
    plain.sampling = &usual;
    OK(tokkata_sample(logits, width, &plain, &again));
    CHECK(token == again);
    logits[3] = (float)NAN;
    CHECK(tokkata_sample(logits, width, &plain, &token) == TOKKATA_ERROR_ARGUMENT);

    OK(tokkata_session_free(session));
    OK(tokkata_session_free(copy));
    OK(tokkata_model_free(model));
    OK(tokkata_session_position(read, &position)); /* it holds its model */
    OK(tokkata_session_free(read));
    free(logits);
    puts("sessions: ok");
    return 0;
}
