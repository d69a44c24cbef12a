/* First token, tokens per second, and CPU time of the calling thread per token: benchmark MODEL.gguf SEQUENCES TOKENS */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tokkata.h>

#define MOST 64

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    int n = argc > 2 ? atoi(argv[2]) : 1, tokens = argc > 3 ? atoi(argv[3]) : 128;
    if (argc < 2 || n < 1 || n > MOST) return 2;
    tokkata_model_options options = TOKKATA_MODEL_OPTIONS_INIT;
    options.n_seqs = (uint32_t)n;
    options.n_ctx = (uint32_t)tokens + 64;
    tokkata_model *model = NULL;
    if (tokkata_model_open(argv[1], strlen(argv[1]), &options, &model) < 0) return 1;
    uint32_t ids[64];
    size_t len = 0;
    if (tokkata_tokenize(model, "Once upon a time", 16, TOKKATA_ADD_SPECIAL, ids, 64, &len) < 0) return 1;
    tokkata_sampling greedy = TOKKATA_SAMPLING_INIT;
    greedy.temperature = 0;
    tokkata_generate_options wanted = TOKKATA_GENERATE_OPTIONS_INIT;
    wanted.sampling = &greedy;
    wanted.max_tokens = (uint32_t)tokens;
    wanted.ignore_end = 1;
    for (int round = 0; round < 5; round++) {
        tokkata_request *requests[MOST];
        int made = 0;
        double began = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID), first = 0;
        for (int i = 0; i < n; i++)
            if (tokkata_request_tokens(model, ids, len, &wanted, &requests[i]) < 0) return 1;
        for (int i = 0, live = n; live > 0; i = (i + 1) % n) {
            tokkata_event event = TOKKATA_EVENT_INIT;
            if (requests[i] == NULL) continue;
            if (tokkata_next_event(requests[i], -1, &event) != TOKKATA_OK) {
                tokkata_request_free(requests[i]);
                requests[i] = NULL;
                live -= 1;
            } else if (event.kind == TOKKATA_EVENT_TOKEN) {
                if (made++ == 0) first = seconds(CLOCK_MONOTONIC) - began;
            }
        }
        double all = seconds(CLOCK_MONOTONIC) - began;
        cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        printf("first token %.2f ms, %.1f tokens/s, %.2f us of the caller's CPU per token\n", first * 1e3,
               made / all, cpu * 1e6 / made);
    }
    tokkata_model_free(model);
    return 0;
}
