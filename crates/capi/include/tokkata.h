/*
 * tokkata.h: run language models from a file, from C and from everything that can call C.
 *
 *     tokkata_model *model = NULL;
 *     if (tokkata_model_open("model.gguf", 10, NULL, &model) != TOKKATA_OK) { ... tokkata_error_take ... }
 *     const char *ask = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}";
 *     tokkata_request *request = NULL;
 *     tokkata_request_json(model, ask, strlen(ask), &request);
 *     tokkata_event event = TOKKATA_EVENT_INIT;
 *     while (tokkata_next_event(request, -1, &event) == TOKKATA_OK)
 *         printf("%.*s\n", (int)event.text_len, event.text);
 *     tokkata_request_free(request);
 *     tokkata_model_free(model);
 *
 * Rules, which hold everywhere:
 *
 * - Every function gives a status: TOKKATA_OK, TOKKATA_TIMEOUT, TOKKATA_END, or an error below 0. What went wrong is told
 *   by tokkata_error_take on the same thread. Results go through the last arguments, which are written only on success
 *   (`needed` of a buffer also when the buffer is too small).
 * - Handles are opaque and never dangle: one that was freed, is of another kind, or never was, gives
 *   TOKKATA_ERROR_HANDLE. Freeing NULL is fine. Handles hold what they need: a model may be freed before its requests.
 * - Any function may be called from any thread. A request and a session serve one caller at a time: a second one, or a
 *   callback that calls back into the same one, gets TOKKATA_ERROR_BUSY. tokkata_cancel may come from anywhere.
 *   After fork() the child may not use the models of its parent and gets TOKKATA_ERROR_FORKED.
 * - Text is a pointer and a length in bytes, UTF-8, without a zero at its end. NULL goes with the length 0.
 * - Buffers are asked for in two calls: with `out` NULL and `capacity` 0, `needed` tells how many elements there are;
 *   then with room for them. With too little room nothing is written and TOKKATA_ERROR_BUFFER comes back.
 * - A struct of options begins with its size, which its ..._INIT sets with the defaults. A shorter struct of an older
 *   program gets defaults for what it lacks; a longer one of a newer program is refused unless the rest is zero.
 *   Structs that are filled are told their size in the same way.
 * - A Rust panic is a bug: it ends in TOKKATA_ERROR_INTERNAL, never in your frames.
 * - Within one TOKKATA_ABI_VERSION symbols and members are only added, at the end.
 */
#ifndef TOKKATA_H
#define TOKKATA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. */
#define TOKKATA_ABI_VERSION 1

/* ---- Status ------------------------------------------------------------------------------------------------------ */

#define TOKKATA_OK 0
#define TOKKATA_TIMEOUT 1              /* nothing came in the time that was given */
#define TOKKATA_END 2                  /* nothing will come any more */
#define TOKKATA_ERROR_ARGUMENT (-1)    /* a null pointer, a wrong size, text that is not UTF-8, a value out of range */
#define TOKKATA_ERROR_HANDLE (-2)      /* a handle that was freed, is of another kind, or never was */
#define TOKKATA_ERROR_BUFFER (-3)      /* the buffer is too small; `needed` tells how large it must be */
#define TOKKATA_ERROR_FILE (-4)        /* a file that cannot be read, is damaged, or is no model */
#define TOKKATA_ERROR_UNSUPPORTED (-5) /* the model, the device or this build cannot do it */
#define TOKKATA_ERROR_BUSY (-6)        /* the handle serves another caller */
#define TOKKATA_ERROR_CANCELLED (-7)   /* the load was cancelled */
#define TOKKATA_ERROR_MEMORY (-8)      /* the memory does not suffice */
#define TOKKATA_ERROR_OVERLOADED (-9)  /* too many requests wait, or the caches are full: try again later */
#define TOKKATA_ERROR_DEVICE (-10)     /* the device failed; load the model again */
#define TOKKATA_ERROR_CONTEXT (-11)    /* the prompt is longer than the context, or than a step */
#define TOKKATA_ERROR_FORKED (-12)     /* the model belongs to the parent process */
#define TOKKATA_ERROR_INTERNAL (-13)   /* a bug of ours */

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

typedef struct tokkata_error tokkata_error;     /* what went wrong */
typedef struct tokkata_model tokkata_model;     /* a loaded model, for any number of threads */
typedef struct tokkata_request tokkata_request; /* something asked for, and its events */
typedef struct tokkata_session tokkata_session; /* a sequence whose cache stays */
typedef struct tokkata_grammar tokkata_grammar; /* a compiled grammar */
typedef struct tokkata_matcher tokkata_matcher; /* one answer on its way through a grammar */

/* ---- Library ----------------------------------------------------------------------------------------------------- */

/* TOKKATA_ABI_VERSION of the library that was loaded. */
int32_t tokkata_abi_version(void);

/* The version of the library, such as "0.1.0"; it lives as long as the program. */
int32_t tokkata_version(const char **text, size_t *len);

/* Levels of messages. */
#define TOKKATA_LOG_ERROR 1
#define TOKKATA_LOG_INFO 3

/* Hears a message. It may come from any thread, and must not call into the library. */
typedef void (*tokkata_log_fn)(void *user, int32_t level, const char *text, size_t len);

/* Sends the messages of this process to `log`; NULL drops them. Panics, which are bugs, come as errors. */
int32_t tokkata_set_log(tokkata_log_fn log, void *user);

/* Devices of this machine as JSON: [{"name", "description"}]. */
int32_t tokkata_devices(char *out, size_t capacity, size_t *needed);

/* The newest error of this thread, which is the caller's from now on; NULL if there was none since the last call. */
int32_t tokkata_error_take(tokkata_error **out);

/* The status that came with an error. */
int32_t tokkata_error_code(const tokkata_error *error, int32_t *code);

/* One line that says what was found, what was expected and what to do; it lives as long as the error. */
int32_t tokkata_error_message(const tokkata_error *error, const char **text, size_t *len);

/* The field of a JSON request that is to blame, or an empty text; it lives as long as the error. */
int32_t tokkata_error_field(const tokkata_error *error, const char **text, size_t *len);

int32_t tokkata_error_free(tokkata_error *error);

/* ---- Models ------------------------------------------------------------------------------------------------------ */

/* Hears how much of a load is done, in bytes, on the threads that load; anything but 0 cancels the load. */
typedef int32_t (*tokkata_progress_fn)(void *user, uint64_t done, uint64_t total);

/* What a model is loaded for. */
#define TOKKATA_FOR_TEXT 0    /* it writes text */
#define TOKKATA_FOR_VECTORS 1 /* it gives vectors of texts */
#define TOKKATA_FOR_BOTH 2    /* both, over one copy of the weights */
#define TOKKATA_FOR_SPEECH 3  /* it writes down what is said, for tokkata_transcribe alone */

/* How the rows of a text become its vector. */
#define TOKKATA_POOL_OWN (-1) /* as the file says */
#define TOKKATA_POOL_NONE 0   /* every row stays */
#define TOKKATA_POOL_MEAN 1
#define TOKKATA_POOL_CLS 2
#define TOKKATA_POOL_LAST 3
#define TOKKATA_POOL_RANK 4   /* the classifier's scores, for tokkata_rerank */

/* A low-rank adapter that every request goes through. */
typedef struct tokkata_adapter {
    const char *path;
    size_t path_len;
    float scale;
} tokkata_adapter;

typedef struct tokkata_model_options {
    uint32_t size;
    int32_t purpose;              /* TOKKATA_FOR_... */
    int32_t pooling;              /* TOKKATA_POOL_... */
    uint32_t n_ctx;               /* positions of a sequence; 0 for the model's own, at most 4,096 */
    uint32_t n_seqs;              /* sequences of a step: requests, or recordings, that run at once */
    uint32_t n_rows;              /* rows of a step; 0 for 512 */
    uint32_t n_logit_rows;        /* rows of a step whose logits can be asked for; 0 for one of each sequence */
    uint32_t threads;             /* 0 for one per physical core */
    const char *device;           /* "cpu", "cuda:0", "auto"; NULL for the default */
    size_t device_len;
    const char *kv_type;          /* "f16", "f32", "bf16", "q8_0", "q4_0"; NULL for f16 */
    size_t kv_type_len;
    uint64_t kv_memory_bytes;     /* for all caches; 0 for whole contexts of all sequences */
    const char *cpu_features;     /* forces a lower instruction set, such as "avx2" or "portable"; NULL for the best */
    size_t cpu_features_len;
    const char *tuning;           /* what tokkata_tune gave; NULL for what is usual */
    size_t tuning_len;
    const tokkata_adapter *adapters;
    size_t n_adapters;
    tokkata_progress_fn progress; /* NULL for none */
    void *progress_user;
    uint32_t taps;                /* 1: keep what goes into every product, for tokkata_taps */
    uint32_t words;               /* 1: of a model for speech, words can be timed */
    const char *speculation;      /* who guesses several tokens at once: "auto", "none", "ngram", "mtp", "draft"; NULL for auto.
                                     No choice changes a text */
    size_t speculation_len;
    const char *draft_model;      /* the file of a smaller model that guesses; NULL for none */
    size_t draft_model_len;
    uint32_t draft_max;           /* tokens guessed at once at most; 0 for what is usual */
    uint32_t gpu_layers;          /* layers that the device takes, the last ones, the processor has the others; 0 for as many as
                                     its memory holds */
    uint32_t cpu_experts;         /* first layers whose experts the processor keeps */
    uint32_t reserved;
} tokkata_model_options;

#define TOKKATA_MODEL_OPTIONS_INIT \
    { (uint32_t)sizeof(tokkata_model_options), TOKKATA_FOR_TEXT, TOKKATA_POOL_OWN, 0, 4, 0, 0, 0, NULL, 0, NULL, 0, 0, \
      NULL, 0, NULL, 0, NULL, 0, NULL, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 0, 0 }

/* Opens and loads the model at a path: a GGUF file, or a directory of Hugging Face or MLX. Options may be NULL. */
int32_t tokkata_model_open(const char *path, size_t path_len, const tokkata_model_options *options,
                           tokkata_model **out);

/* The same for a GGUF file in memory, of which a copy is made. */
int32_t tokkata_model_open_bytes(const void *bytes, size_t len, const tokkata_model_options *options,
                                 tokkata_model **out);

int32_t tokkata_model_free(tokkata_model *model);

typedef struct tokkata_model_info {
    uint32_t size;
    uint32_t n_vocab;        /* width of its logits */
    uint32_t n_ctx;          /* positions of a sequence, as it was loaded */
    uint32_t n_ctx_train;    /* positions it was trained for; 0 if the file does not say */
    uint32_t n_embd;         /* width of its rows */
    uint32_t n_layers;
    uint32_t n_seqs;         /* requests that run at once */
    uint32_t n_rows;         /* rows of a step */
    uint32_t vector_width;   /* columns of a vector; 0 if it was loaded for text alone */
    uint32_t writes_text;    /* 1 if it can answer */
    uint32_t has_template;   /* 1 if it has a chat template */
    uint32_t n_tensors;
    uint64_t n_params;
    uint64_t file_bytes;
    uint64_t memory_bytes;   /* held for weights, caches and scratch */
    uint32_t hears;          /* 1 if it was loaded for speech */
    uint32_t reserved;
} tokkata_model_info;

#define TOKKATA_MODEL_INFO_INIT { (uint32_t)sizeof(tokkata_model_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

int32_t tokkata_model_get_info(const tokkata_model *model, tokkata_model_info *info);

/* The file's metadata under GGUF's keys, as JSON; lists of more than 64 elements are given as {"length": n}. */
int32_t tokkata_model_metadata(const tokkata_model *model, char *out, size_t capacity, size_t *needed);

typedef struct tokkata_tensor {
    uint32_t size;
    uint32_t n_dims;
    uint64_t dims[4];  /* slowest first */
    uint64_t bytes;
    const char *name;  /* these live as long as the model */
    size_t name_len;
    const char *type;  /* such as "q4_k" */
    size_t type_len;
} tokkata_tensor;

#define TOKKATA_TENSOR_INIT { (uint32_t)sizeof(tokkata_tensor), 0, { 0, 0, 0, 0 }, 0, NULL, 0, NULL, 0 }

/* A tensor of the file, by its place; TOKKATA_END behind the last. */
int32_t tokkata_model_tensor(const tokkata_model *model, size_t index, tokkata_tensor *tensor);

/* What the engine is doing. */
typedef struct tokkata_figures {
    uint32_t size;
    uint32_t waiting;    /* requests that wait */
    uint32_t running;    /* requests that run */
    uint32_t reserved;
    double cache_usage;  /* share of the caches' memory that sequences hold, 0 to 1 */
} tokkata_figures;

#define TOKKATA_FIGURES_INIT { (uint32_t)sizeof(tokkata_figures), 0, 0, 0, 0.0 }

int32_t tokkata_model_figures(const tokkata_model *model, tokkata_figures *figures);

/* Forgets every stored prefix. */
int32_t tokkata_model_forget(const tokkata_model *model);

/* ---- Tokens and templates ---------------------------------------------------------------------------------------- */

#define TOKKATA_ADD_SPECIAL 1u   /* put the tokens around a text that the file asks for */
#define TOKKATA_PARSE_SPECIAL 2u /* recognise special tokens; never do it to what a stranger wrote */

/* Token ids of a text. */
int32_t tokkata_tokenize(const tokkata_model *model, const char *text, size_t len, uint32_t flags, uint32_t *out,
                         size_t capacity, size_t *needed);

#define TOKKATA_SHOW_SPECIAL 1u /* spell special tokens out */
#define TOKKATA_CONTINUES 2u    /* the text goes on with another one, so that its first space stays */

/* The bytes of tokens, which need not be whole characters. */
int32_t tokkata_detokenize(const tokkata_model *model, const uint32_t *ids, size_t n, uint32_t flags, char *out,
                           size_t capacity, size_t *needed);

/* The bytes that one token stands for. */
int32_t tokkata_token_bytes(const tokkata_model *model, uint32_t id, char *out, size_t capacity, size_t *needed);

#define TOKKATA_TOKEN_BOS 0
#define TOKKATA_TOKEN_EOS 1
#define TOKKATA_TOKEN_PAD 2
#define TOKKATA_TOKEN_UNKNOWN 3
#define TOKKATA_TOKEN_SEPARATOR 4

/* A special token; TOKKATA_END if the file has none of the kind. */
int32_t tokkata_token_special(const tokkata_model *model, int32_t which, uint32_t *id);

/* The tokens that end an answer. */
int32_t tokkata_end_tokens(const tokkata_model *model, uint32_t *out, size_t capacity, size_t *needed);

/* The source of the chat template. */
int32_t tokkata_template_source(const tokkata_model *model, char *out, size_t capacity, size_t *needed);

/* The prompt of a chat request (JSON, as tokkata_request_json takes it), as text. */
int32_t tokkata_apply_template(const tokkata_model *model, const char *json, size_t len, char *out, size_t capacity,
                               size_t *needed);

/* The same as tokens; special tokens are recognised in what the template wrote alone. */
int32_t tokkata_chat_tokens(const tokkata_model *model, const char *json, size_t len, uint32_t *out, size_t capacity,
                            size_t *needed);

/* ---- Requests and their events ----------------------------------------------------------------------------------- */

/*
 * Asks in the terms of OpenAI's API, with the fields that llama.cpp and vLLM add to it: {"messages": [...]} for a chat
 * completion, {"prompt": ...} for a completion; "stream" for chunks as they come. A field is honoured, refused by name,
 * or told in "warnings". Events are TOKKATA_EVENT_JSON: the whole answer, or its chunks.
 */
int32_t tokkata_request_json(const tokkata_model *model, const char *json, size_t len, tokkata_request **out);

/* How tokens are picked. */
typedef struct tokkata_sampling {
    uint32_t size;
    float temperature;       /* 0 picks the largest logit */
    uint32_t top_k;          /* 0 keeps all */
    float top_p;             /* 1 keeps all */
    float min_p;             /* 0 keeps all */
    float typical_p;         /* 1 keeps all */
    float top_n_sigma;       /* 0 keeps all */
    float xtc_probability;   /* 0 never */
    float xtc_threshold;
    float repeat_penalty;    /* 1 is off */
    float frequency_penalty;
    float presence_penalty;
    int32_t repeat_last_n;   /* newest tokens that penalties see; -1 for all */
    uint32_t reserved;
    uint64_t seed;           /* with a position it decides a draw alone */
} tokkata_sampling;

#define TOKKATA_SAMPLING_INIT \
    { (uint32_t)sizeof(tokkata_sampling), 0.8f, 40, 0.95f, 0.05f, 1.0f, 0.0f, 0.0f, 0.1f, 1.0f, 0.0f, 0.0f, 64, 0, 0 }

typedef struct tokkata_bias {
    uint32_t token;
    float bias; /* added to its logit; -INFINITY keeps it out */
} tokkata_bias;

typedef struct tokkata_text {
    const char *data;
    size_t len;
} tokkata_text;

typedef struct tokkata_generate_options {
    uint32_t size;
    uint32_t max_tokens;              /* 0 for as many as the context holds */
    const tokkata_sampling *sampling; /* NULL for the defaults */
    const tokkata_bias *biases;
    size_t n_biases;
    const tokkata_text *stop;         /* texts that end the answer and are no part of it */
    size_t n_stop;
    const uint32_t *stop_tokens;      /* tokens that end it, beside the model's own */
    size_t n_stop_tokens;
    uint32_t ignore_end;              /* 1: the model cannot end the answer */
    int32_t logprobs;                 /* so many of the likeliest tokens with each token, at most 20; -1 for none */
    const tokkata_grammar *grammar;   /* what the answer must follow; NULL for nothing */
    tokkata_session *session;         /* the sequence that the prompt is all of; NULL for a new one */
    int32_t priority;                 /* higher ones are let in first */
    uint32_t timeout_ms;              /* after so long it fails; 0 for never */
    uint64_t salt;                    /* stored prefixes are shared within one salt alone */
} tokkata_generate_options;

#define TOKKATA_GENERATE_OPTIONS_INIT \
    { (uint32_t)sizeof(tokkata_generate_options), 0, NULL, NULL, 0, NULL, 0, NULL, 0, 0, -1, NULL, NULL, 0, 0, 0 }

/* Asks for what follows these tokens: the short way, without JSON. Events are TOKKATA_EVENT_TOKEN and so on. */
int32_t tokkata_request_tokens(const tokkata_model *model, const uint32_t *ids, size_t n,
                               const tokkata_generate_options *options, tokkata_request **out);

/* Asks for the vector of a text of these tokens: TOKKATA_EVENT_VALUES, one row, or one per token without pooling. */
int32_t tokkata_request_vector(const tokkata_model *model, const uint32_t *ids, size_t n, tokkata_request **out);

/* Asks for the logits after each of these tokens: TOKKATA_EVENT_VALUES, rows of n_vocab. */
int32_t tokkata_request_logits(const tokkata_model *model, const uint32_t *ids, size_t n, tokkata_request **out);

#define TOKKATA_EVENT_JSON 1     /* text: the answer, or a chunk of it */
#define TOKKATA_EVENT_PROGRESS 2 /* n_cached of n_prompt tokens are computed */
#define TOKKATA_EVENT_TOKEN 3    /* token, text, and with logprobs: logprob, top */
#define TOKKATA_EVENT_VALUES 4   /* values: rows of width */
#define TOKKATA_EVENT_FINISHED 5 /* text that was held back, finish, and what it cost; of a transcript all of its text */
#define TOKKATA_EVENT_SEGMENT 6  /* of a transcript: text, start, end, words, logprob (mean of its window), no_speech */
#define TOKKATA_EVENT_LANGUAGE 7 /* of a transcript whose language was to be found: text is its code, and logprob */

#define TOKKATA_FINISH_STOP 0      /* the model ended it */
#define TOKKATA_FINISH_TEXT 1      /* a stop text or token did */
#define TOKKATA_FINISH_LENGTH 2    /* it has as many tokens as were asked for */
#define TOKKATA_FINISH_CONTEXT 3   /* the context is full */
#define TOKKATA_FINISH_CANCELLED 4

typedef struct tokkata_logprob {
    uint32_t token;
    float logprob; /* natural logarithm */
} tokkata_logprob;

/* A word of a transcript. */
typedef struct tokkata_word {
    const char *text;   /* with the space before it */
    size_t len;
    double start;       /* seconds */
    double end;
    double probability; /* mean of its tokens' */
} tokkata_word;

/* What happened to a request. Pointers live until the request's next event, or until it is freed. */
typedef struct tokkata_event {
    uint32_t size;
    int32_t kind;                /* TOKKATA_EVENT_... */
    const char *text;            /* of tokens: whole characters that became certain */
    size_t text_len;
    uint32_t token;
    float logprob;               /* 0 for a token that a grammar forced */
    const tokkata_logprob *top;  /* the likeliest tokens, best first */
    size_t n_top;
    const float *values;
    size_t n_values;             /* numbers in all */
    size_t width;                /* numbers of a row */
    int32_t finish;              /* TOKKATA_FINISH_... */
    uint32_t n_prompt;           /* tokens of the prompt */
    uint32_t n_cached;           /* of them computed, now or before */
    uint32_t n_reused;           /* of them computed before */
    uint32_t n_generated;
    uint32_t reserved;
    uint64_t prompt_ns;          /* from the first step to the first token */
    uint64_t generate_ns;        /* from the first token to the last */
    uint32_t n_drafted;          /* tokens that were guessed and tried */
    uint32_t n_accepted;         /* of them right */
    double start;                /* seconds */
    double end;
    float no_speech;             /* how likely it is that nobody spoke in its window, 0 to 1 */
    uint32_t reserved2;
    const tokkata_word *words;   /* where they were asked for */
    size_t n_words;
} tokkata_event;

#define TOKKATA_EVENT_INIT \
    { (uint32_t)sizeof(tokkata_event), 0, NULL, 0, 0, 0.0f, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0.0, 0.0, 0.0f, 0, NULL, 0 }

/*
 * Waits for the next event of a request: for ever with a negative timeout, not at all with 0. TOKKATA_TIMEOUT when none
 * came in time, TOKKATA_END after the last one; an error when the request failed, which ends it.
 */
int32_t tokkata_next_event(tokkata_request *request, int64_t timeout_ns, tokkata_event *event);

/* Hears an event; anything but 0 cancels the request, whose last events still come. */
typedef int32_t (*tokkata_event_fn)(void *user, const tokkata_event *event);

/* Gives every event of a request to `each`, on this thread, until it has ended. */
int32_t tokkata_request_run(tokkata_request *request, tokkata_event_fn each, void *user);

/* Ends a request, from any thread; its last events still come. */
int32_t tokkata_cancel(tokkata_request *request);

/* Frees a request; one that has not ended is cancelled. */
int32_t tokkata_request_free(tokkata_request *request);

/* ---- Sessions and steps by hand ---------------------------------------------------------------------------------- */

/* Opens an empty sequence. */
int32_t tokkata_session_open(const tokkata_model *model, tokkata_session **out);

int32_t tokkata_session_free(tokkata_session *session);

/* Tokens whose cache it holds. */
int32_t tokkata_session_position(const tokkata_session *session, size_t *position);

/* Those tokens. */
int32_t tokkata_session_tokens(const tokkata_session *session, uint32_t *out, size_t capacity, size_t *needed);

/* Computes the cache of further tokens, beside whatever else the model does. */
int32_t tokkata_session_append(tokkata_session *session, const uint32_t *ids, size_t n);

/* Forgets its tokens from `position` on, exactly. States of recurrent models cannot go back. */
int32_t tokkata_session_rollback(tokkata_session *session, size_t position);

/* A session that goes on from where this one is; they share memory until one of them writes. */
int32_t tokkata_session_fork(const tokkata_session *session, tokkata_session **out);

/* Writes it to a file: its tokens and their cache. */
int32_t tokkata_session_save(const tokkata_session *session, const char *path, size_t path_len);

/* Reads it back, for the same model with the same kind of cache. */
int32_t tokkata_session_load(const tokkata_model *model, const char *path, size_t path_len, tokkata_session **out);

#define TOKKATA_LOGITS_NONE 0
#define TOKKATA_LOGITS_LAST 1
#define TOKKATA_LOGITS_ALL 2

/* Tokens of a session in a step by hand. */
typedef struct tokkata_feed {
    tokkata_session *session;
    const uint32_t *tokens;
    size_t n_tokens;
    int32_t logits;   /* TOKKATA_LOGITS_... */
    uint32_t answers; /* 1: they are of an answer; 0: of a prompt. Devices may compute the two by different kernels */
} tokkata_feed;

/*
 * One step of many sequences of one model: feeds each its tokens, and gives the logits that were asked for, in the order
 * of the feeds, rows of n_vocab. It waits until no request is under way, and requests that come meanwhile wait for it.
 * All tokens together fit into n_rows, all rows of logits into n_logit_rows. With too little room nothing is computed.
 */
int32_t tokkata_step(const tokkata_feed *feeds, size_t n_feeds, float *out, size_t capacity, size_t *needed);

/* Feeds a session any number of tokens, in as many steps as they need, and gives the last one's logits. */
int32_t tokkata_prefill(tokkata_session *session, const uint32_t *ids, size_t n, float *out, size_t capacity,
                        size_t *needed);

/*
 * Goes on for `n` tokens after those that a session holds and `last`, which it does not hold yet, without coming back in
 * between; it ends early where the model ends its answer. `n_out` tells how many tokens were written.
 */
int32_t tokkata_chain(tokkata_session *session, uint32_t last, const tokkata_sampling *sampling, uint32_t *out,
                      size_t n, size_t *n_out);

/* Hears what went into a product: the name of its weight, and rows; anything but 0 ends the call. */
typedef int32_t (*tokkata_tap_fn)(void *user, const char *name, size_t name_len, const float *values, size_t rows,
                                  size_t width);

/* Computes these tokens from the beginning in one step, and gives what went into every product, for a model with taps. */
int32_t tokkata_taps(const tokkata_model *model, const uint32_t *ids, size_t n, tokkata_tap_fn each, void *user);

/* ---- Vectors and scores ------------------------------------------------------------------------------------------ */

/* The vector of a text; with `normalize` of length 1. Without pooling there is one row per token. */
int32_t tokkata_embed(const tokkata_model *model, const char *text, size_t len, int32_t normalize, float *out,
                      size_t capacity, size_t *needed);

/* How well each text fits a query, in order: one score each. The model is loaded with TOKKATA_POOL_RANK. */
int32_t tokkata_rerank(const tokkata_model *model, const char *query, size_t query_len, const tokkata_text *texts,
                       size_t n_texts, float *out, size_t capacity, size_t *needed);

/* ---- Speech ------------------------------------------------------------------------------------------------------ */

typedef struct tokkata_transcribe_options {
    uint32_t size;
    uint32_t translate;     /* 1: give English, whatever is spoken */
    const char *language;   /* the language spoken, as a code or a name; NULL: find it */
    size_t language_len;
    const char *prompt;     /* a text that stands before: names and spellings to expect */
    size_t prompt_len;
    uint32_t beams;         /* of the search; 1 takes the likeliest token. At most 5 for each of n_seqs in all */
    uint32_t best_of;       /* texts drawn at once where the first was no good; as many at most */
    float temperature;      /* of the first try, 0 to 1 */
    float temperature_step; /* what each further try adds; 0 tries once */
    uint32_t words;         /* 1: when words were said; the model is loaded with `words` */
    uint32_t no_timestamps; /* 1: ask for no times */
    uint32_t no_context;    /* 1: do not tell a window what was said before it */
    int32_t channel;        /* of a recording with several; -1 for their mean */
    const double *clips;    /* stretches to hear, in seconds: from, to, from, to; the last may go on to the end */
    size_t n_clips;
    uint64_t seed;
} tokkata_transcribe_options;

#define TOKKATA_TRANSCRIBE_OPTIONS_INIT \
    { (uint32_t)sizeof(tokkata_transcribe_options), 0, NULL, 0, NULL, 0, 5, 5, 0.0f, 0.2f, 0, 0, 0, -1, NULL, 0, 0 }

/*
 * Asks what is said in a recording (WAV, FLAC, MP3, OGG, M4A, MKV, WebM, AIFF), by a model that was loaded for speech. Its
 * events are TOKKATA_EVENT_LANGUAGE, _SEGMENT as they come, and _FINISHED. Windows of all recordings under way share steps.
 */
int32_t tokkata_transcribe(const tokkata_model *model, const char *path, size_t path_len,
                           const tokkata_transcribe_options *options, tokkata_request **out);

/* The same for samples of one channel in -1 to 1, `rate` of them per second; a copy is made. */
int32_t tokkata_transcribe_pcm(const tokkata_model *model, const float *samples, size_t n, uint32_t rate,
                               const tokkata_transcribe_options *options, tokkata_request **out);

/* ---- Grammars ---------------------------------------------------------------------------------------------------- */

#define TOKKATA_GRAMMAR_JSON_SCHEMA 0
#define TOKKATA_GRAMMAR_REGEX 1
#define TOKKATA_GRAMMAR_LARK 2
#define TOKKATA_GRAMMAR_GBNF 3

/* Compiles a grammar for a model's vocabulary. `{}` as a schema stands for any JSON. */
int32_t tokkata_grammar_new(const tokkata_model *model, int32_t kind, const char *source, size_t len,
                            tokkata_grammar **out);

int32_t tokkata_grammar_free(tokkata_grammar *grammar);

/* A walk through a grammar by hand, from its beginning. */
int32_t tokkata_matcher_new(const tokkata_grammar *grammar, tokkata_matcher **out);

int32_t tokkata_matcher_free(tokkata_matcher *matcher);

/* What may come next: one bit per token, the lowest id in the lowest bit of the first word. */
int32_t tokkata_matcher_mask(tokkata_matcher *matcher, uint32_t *out, size_t capacity, size_t *needed);

/* Takes a token; TOKKATA_ERROR_ARGUMENT if it may not come next. */
int32_t tokkata_matcher_accept(tokkata_matcher *matcher, uint32_t token);

/* Takes back the newest tokens. */
int32_t tokkata_matcher_rollback(tokkata_matcher *matcher, size_t tokens);

/* ---- Sampling of given logits ------------------------------------------------------------------------------------ */

typedef struct tokkata_sample_options {
    uint32_t size;
    uint32_t position;                /* of the row that the logits are of: it decides the draw, with the seed */
    const tokkata_sampling *sampling; /* NULL for the defaults */
    const tokkata_bias *biases;
    size_t n_biases;
    const uint32_t *recent;           /* tokens before, oldest first, which penalties see */
    size_t n_recent;
    const uint32_t *mask;             /* what may come, as tokkata_matcher_mask writes it; NULL for all */
    size_t n_mask;
} tokkata_sample_options;

#define TOKKATA_SAMPLE_OPTIONS_INIT \
    { (uint32_t)sizeof(tokkata_sample_options), 0, NULL, NULL, 0, NULL, 0, NULL, 0 }

/* Draws a token from logits, as the engine would: the same one on every device. Options may be NULL. */
int32_t tokkata_sample(const float *logits, size_t n, const tokkata_sample_options *options, uint32_t *token);

/* ---- Machine ----------------------------------------------------------------------------------------------------- */

/* Measures which kernels are fastest on this machine, for tokkata_model_options.tuning; takes seconds. A buffer must
   have room for 4,096 bytes; `needed` tells how many were written. */
int32_t tokkata_tune(uint32_t threads, char *out, size_t capacity, size_t *needed);

/* Where the time of one decoding step goes after `n_past` tokens, as JSON: [{"label", "ns"}], in order. */
int32_t tokkata_profile(const tokkata_model *model, uint32_t n_past, char *out, size_t capacity, size_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* TOKKATA_H */
