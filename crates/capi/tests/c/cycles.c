/* Opens, asks and closes again and again; what is resident must not grow. */
#include "check.h"

static long resident_kib(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long size = 0, resident = 0;
    CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident * 4;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int cycles = atoi(argv[2]);
    /* What the C library keeps for later comes and goes: the most of the first cycles, and the least of the last ones. */
    long begun = 0, ended = -1;
    for (int i = 0; i < cycles; i++) {
        tokkata_model_options options = TOKKATA_MODEL_OPTIONS_INIT;
        options.n_seqs = 1;
        options.n_ctx = 128;
        options.threads = 1;
        tokkata_model *model = open_model(argv[1], &options);
        tokkata_request *request = NULL;
        tokkata_event event = TOKKATA_EVENT_INIT;
        uint32_t ids[8];
        size_t n = 0;
        OK(tokkata_tokenize(model, "Hello", 5, 0, ids, 8, &n));
        tokkata_generate_options few = TOKKATA_GENERATE_OPTIONS_INIT;
        few.max_tokens = 2;
        OK(tokkata_request_tokens(model, ids, n, &few, &request));
        while (tokkata_next_event(request, -1, &event) == TOKKATA_OK) continue;
        OK(tokkata_request_free(request));
        OK(tokkata_model_free(model));
        long now = resident_kib();
        if (i < cycles * 2 / 5 && now > begun) begun = now;
        if (i >= cycles * 4 / 5 && (ended < 0 || now < ended)) ended = now;
    }
    long grown = ended - begun;
    printf("cycles: %d, grown by %ld KiB\n", cycles, grown);
    CHECK(grown < 8192);
    return 0;
}
