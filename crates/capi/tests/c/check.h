/* What the tests share: a check that says where it failed, and a model to try things on. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokkata.h"

#define CHECK(what)                                                                \
    do {                                                                           \
        if (!(what)) {                                                             \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #what);    \
            tell();                                                                \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

#define OK(call) CHECK((call) == TOKKATA_OK)

static void tell(void) {
    tokkata_error *error = NULL;
    if (tokkata_error_take(&error) == TOKKATA_OK && error != NULL) {
        const char *text = NULL;
        size_t len = 0;
        tokkata_error_message(error, &text, &len);
        fprintf(stderr, "  %.*s\n", (int)len, text);
        tokkata_error_free(error);
    }
}

static tokkata_model *open_model(const char *path, tokkata_model_options *options) {
    tokkata_model_options usual = TOKKATA_MODEL_OPTIONS_INIT;
    /* Checkers of memory do not know every instruction. */
    const char *features = getenv("TOKKATA_TEST_FEATURES");
    tokkata_model *model = NULL;
    if (options == NULL) options = &usual;
    if (features != NULL) {
        options->cpu_features = features;
        options->cpu_features_len = strlen(features);
    }
    OK(tokkata_model_open(path, strlen(path), options, &model));
    return model;
}

#endif
