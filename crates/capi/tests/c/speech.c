/* Speech: recordings heard alone and side by side, cancelled, refused. The model's weights follow from names: what it says
   means nothing, but is the same everywhere. */
#include <math.h>

#include "check.h"

#define SECONDS 2
#define RATE 16000

static float tone[SECONDS * RATE];

typedef struct heard {
    int languages, segments, words, finish;
    char text[8192];
    size_t len;
} heard;

static int32_t hear(void *user, const tokkata_event *event) {
    heard *all = user;
    if (event->kind == TOKKATA_EVENT_LANGUAGE) {
        CHECK(event->text_len == 2 && event->logprob <= 0);
        all->languages += 1;
    } else if (event->kind == TOKKATA_EVENT_SEGMENT) {
        /* The times are such a model's: numbers, and no more. */
        CHECK(event->start >= 0 && event->end >= 0 && event->end < 60);
        CHECK(event->no_speech >= 0 && event->no_speech <= 1 && event->logprob <= 0);
        all->segments += 1;
        for (size_t i = 0; i < event->n_words; i++) {
            const tokkata_word *word = &event->words[i];
            CHECK(word->len > 0 && word->start >= 0 && word->probability >= 0 && word->probability <= 1);
            all->words += 1;
        }
    } else if (event->kind == TOKKATA_EVENT_FINISHED) {
        CHECK(event->text_len < sizeof all->text);
        if (event->text_len > 0) memcpy(all->text, event->text, event->text_len);
        all->len = event->text_len;
        all->finish = event->finish;
    }
    return 0;
}

static heard whole(tokkata_request *request) {
    static heard all;
    memset(&all, 0, sizeof all);
    OK(tokkata_request_run(request, hear, &all));
    OK(tokkata_request_free(request));
    return all;
}

static int same(const heard *a, const heard *b) {
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const char *speech = argv[1], *text_model = argv[2], *wav = argv[3];
    for (int i = 0; i < SECONDS * RATE; i++) tone[i] = (float)(sin(i * 0.1) / 3 * (1 + sin(i * 1e-3)));
    tokkata_model_options choices = TOKKATA_MODEL_OPTIONS_INIT;
    choices.purpose = TOKKATA_FOR_SPEECH;
    choices.n_seqs = 2;
    choices.words = 1;
    tokkata_model *model = open_model(speech, &choices);
    tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
    OK(tokkata_model_get_info(model, &info));
    CHECK(info.hears == 1 && info.writes_text == 0 && info.n_seqs == 2 && info.n_vocab == 51865 && info.memory_bytes > 0);

    tokkata_transcribe_options greedy = TOKKATA_TRANSCRIBE_OPTIONS_INIT;
    greedy.beams = 1;
    greedy.temperature_step = 0;
    greedy.language = "en";
    greedy.language_len = 2;
    tokkata_request *one = NULL, *two = NULL;
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, &greedy, &one));
    heard alone = whole(one);
    CHECK(alone.finish == TOKKATA_FINISH_STOP && alone.segments > 0 && alone.len > 0 && alone.languages == 0);

    /* Side by side, each says what it says alone; a language that is not told is found; words are timed. */
    tokkata_transcribe_options other = greedy;
    other.language_len = 0;
    other.words = 1;
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, &greedy, &one));
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, &other, &two));
    heard found = whole(two), beside = whole(one);
    CHECK(same(&alone, &beside) && found.languages == 1 && found.words > 0);

    /* A file is heard as its samples are; another rate is resampled. */
    OK(tokkata_transcribe(model, wav, strlen(wav), &greedy, &one));
    heard file = whole(one);
    CHECK(file.segments > 0 && file.finish == TOKKATA_FINISH_STOP);
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, 8000, &greedy, &one));
    CHECK(whole(one).segments > 0);

    /* Cancelled, and freed while it is heard. */
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, NULL, &one));
    OK(tokkata_cancel(one));
    CHECK(whole(one).finish == TOKKATA_FINISH_CANCELLED);
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, NULL, &one));
    tokkata_event event = TOKKATA_EVENT_INIT;
    CHECK(tokkata_next_event(one, 0, &event) == TOKKATA_TIMEOUT);
    OK(tokkata_request_free(one));

    /* What cannot be is told. */
    CHECK(tokkata_transcribe(model, "/nowhere.wav", 12, NULL, &one) == TOKKATA_ERROR_FILE);
    CHECK(tokkata_transcribe(model, speech, strlen(speech), NULL, &one) == TOKKATA_ERROR_FILE);
    CHECK(tokkata_transcribe_pcm(model, NULL, 5, RATE, NULL, &one) == TOKKATA_ERROR_ARGUMENT);
    CHECK(tokkata_transcribe_pcm(model, tone, 0, RATE, NULL, &one) == TOKKATA_ERROR_FILE);
    CHECK(tokkata_transcribe_pcm(model, tone, 100, 5, NULL, &one) == TOKKATA_ERROR_FILE);
    other = greedy;
    other.language = "klingon";
    other.language_len = 7;
    CHECK(tokkata_transcribe_pcm(model, tone, 100, RATE, &other, &one) == TOKKATA_ERROR_ARGUMENT);
    other = greedy;
    other.beams = 11;
    CHECK(tokkata_transcribe_pcm(model, tone, 100, RATE, &other, &one) == TOKKATA_ERROR_ARGUMENT);
    other = greedy;
    other.temperature = (float)NAN;
    CHECK(tokkata_transcribe_pcm(model, tone, 100, RATE, &other, &one) == TOKKATA_ERROR_ARGUMENT);
    size_t needed = 0;
    CHECK(tokkata_tokenize(model, "x", 1, 0, NULL, 0, &needed) == TOKKATA_ERROR_UNSUPPORTED);
    tokkata_session *session = NULL;
    CHECK(tokkata_session_open(model, &session) == TOKKATA_ERROR_UNSUPPORTED);
    tokkata_model *text = NULL;
    CHECK(tokkata_model_open(text_model, strlen(text_model), &choices, &text) == TOKKATA_ERROR_UNSUPPORTED);
    choices.purpose = TOKKATA_FOR_TEXT;
    choices.words = 0;
    text = open_model(text_model, &choices);
    CHECK(tokkata_transcribe_pcm(text, tone, 100, RATE, NULL, &one) == TOKKATA_ERROR_UNSUPPORTED);

    /* Freed while a recording is heard: the request holds its model. */
    OK(tokkata_transcribe_pcm(model, tone, SECONDS * RATE, RATE, &greedy, &one));
    OK(tokkata_model_free(model));
    CHECK(whole(one).finish == TOKKATA_FINISH_STOP);
    OK(tokkata_model_free(text));
    puts("speech: ok");
    return 0;
}
