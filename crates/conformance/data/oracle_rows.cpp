// Rows of llama.cpp for a token sequence, as little-endian f32.
// usage: oracle_rows MODEL.gguf OUT.bin KIND ID,ID,... [DECODER_ID,...] [lora=ADAPTER.gguf | draft=DRAFTER.gguf]
//   A KIND that ends in +nodes writes every float tensor of the graph to OUT.bin.nodes too: a line of its name, its op and
//   how many values follow, then these.
//   KIND logits: T x vocabulary; steps: the same, one token at a time; flash: the same by flash attention; vectors: T x width, no pooling; decoder: logits of the decoder's ids over encoded ids
//   heads: H x T x vocabulary, each multi-token-prediction head over what the graph before it made of the position before
//   With a drafter that reads the model's states, heads: of EAGLE-3 its rows over tokens and the states before them (row 0
//   is zeros), then those over what it made of them itself; of DFlash every masked token of a block behind each position.
// F32 keys and values, no flash attention but for KIND flash, no repacking, one thread.
#include "llama.h"
#include "../../src/llama-ext.h"
#include "ggml.h"
#include "ggml-backend.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static std::vector<llama_token> ids_of(const char * text) {
    std::vector<llama_token> ids;
    for (const char * p = text; *p;) { char * end; ids.push_back((llama_token) strtol(p, &end, 10)); p = *end ? end + 1 : end; }
    return ids;
}

static llama_batch batch_of(const std::vector<llama_token> & ids) {
    llama_batch b = llama_batch_init((int) ids.size(), 0, 1);
    b.n_tokens = (int) ids.size();
    for (int i = 0; i < b.n_tokens; i++) { b.token[i] = ids[i]; b.pos[i] = i; b.n_seq_id[i] = 1; b.seq_id[i][0] = 0; b.logits[i] = 1; }
    return b;
}

static bool write_node(ggml_tensor * t, bool ask, void * file) {
    if (ask || t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t)) return true;
    std::vector<char> data(ggml_nbytes(t));
    ggml_backend_tensor_get(t, data.data(), 0, data.size());
    fprintf((FILE *) file, "%s\t%s\t%zu\n", t->name, ggml_op_name(t->op), data.size() / 4);
    fwrite(data.data(), 1, data.size(), (FILE *) file);
    return true;
}

// The state that a graph gives its head, taken when it is made: the context's copy of it comes when later nodes may have
// written over it (those of DeepSeek V4 do).
static std::vector<float> state;

static bool take_state(ggml_tensor * t, bool ask, void * file) {
    const bool is_state = strcmp(t->name, "h_nextn") == 0;
    if (ask) return is_state || file;
    if (is_state) {
        state.resize(ggml_nelements(t));
        ggml_backend_tensor_get(t, state.data(), 0, ggml_nbytes(t));
    }
    return file ? write_node(t, ask, file) : true;
}

// Logits of every head; each reads token t and the state of position t - 1, zeros at first.
static bool write_heads(llama_model * model, llama_context * trunk, llama_context_params cp, const std::vector<llama_token> & ids, FILE * f) {
    const int heads = llama_model_n_layer_nextn(model), count = (int) ids.size();
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const size_t width = llama_model_n_embd_out(model);
    if (heads == 0) { fprintf(stderr, "the model has no head\n"); return false; }
    llama_set_embeddings_nextn(trunk, true, false);
    if (llama_decode(trunk, batch_of(ids)) != 0) { fprintf(stderr, "decode failed\n"); return false; }
    cp.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    cp.ctx_other = trunk;
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return false;
    llama_set_embeddings_nextn(ctx, true, false);
    for (int head = 0; head < heads; head++) {
        llama_memory_clear(llama_get_memory(ctx), true);
        llama_set_nextn_layer_offset(ctx, head);
        if (state.size() != count * width) { fprintf(stderr, "%zu values of state\n", state.size()); return false; }
        std::vector<float> before(state);
        before.insert(before.begin(), width, 0.0f);
        llama_batch_ext * batch = llama_batch_ext_init(ctx);
        for (llama_pos t = 0; t < count; t++) {
            const int at = llama_batch_ext_add_token(batch, 0, ids[t]);
            llama_batch_ext_set_pos(batch, at, &t);
            llama_batch_ext_set_output_logits(batch, at, true);
            llama_batch_ext_set_embd_token(batch, at, { before.data() + t * width, 1, width });
        }
        if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch) != 0) { fprintf(stderr, "head %d failed\n", head); return false; }
        for (int t = 0; t < count; t++) fwrite(llama_get_logits_ith(ctx, t), 4, vocabulary, f);
        llama_batch_ext_free(batch);
    }
    return true;
}

// A step of a drafter: tokens or states, or both, at positions from `pos` on; its rows of logits are appended.
struct rows_of {
    const std::vector<llama_token> * tokens;
    const std::vector<float> * states;
    size_t width;
    llama_pos pos;
    bool logits;
};

static bool run_rows(llama_context * ctx, llama_process_type type, const rows_of & rows) {
    llama_batch_ext * batch = llama_batch_ext_init(ctx);
    const size_t count = rows.tokens ? rows.tokens->size() : rows.states->size() / rows.width;
    for (size_t t = 0; t < count; t++) {
        const llama_pos pos = rows.pos + (llama_pos) t;
        int at;
        const auto state = [&] { return llama_embd { rows.states->data() + t * rows.width, 1, rows.width }; };
        if (rows.tokens) {
            at = llama_batch_ext_add_token(batch, 0, (*rows.tokens)[t]);
            if (rows.states) llama_batch_ext_set_embd_token(batch, at, state());
        } else {
            at = llama_batch_ext_add_embd(batch, 0, state());
        }
        llama_batch_ext_set_pos(batch, at, &pos);
        llama_batch_ext_set_output_logits(batch, at, rows.logits);
    }
    const bool done = llama_process(ctx, type, batch) == 0;
    llama_batch_ext_free(batch);
    return done;
}

// What goes into some of the model's layers, side by side.
static std::vector<float> taps_of(llama_model * model, llama_context * trunk, const llama_model * drafter, const std::vector<llama_token> & ids) {
    const int32_t * layers = llama_model_target_layer_ids(drafter);
    const size_t taps = llama_model_target_layer_ids_n(drafter), width = llama_model_n_embd(model);
    const int last = llama_model_n_layer(model);
    for (size_t k = 0; k < taps; k++) {
        if (layers[k] < last) llama_set_embeddings_layer_inp(trunk, layers[k], true);
        else llama_set_embeddings_nextn(trunk, true, false);
    }
    std::vector<float> all;
    if (llama_decode(trunk, batch_of(ids)) != 0) return all;
    all.resize(ids.size() * taps * width);
    for (size_t k = 0; k < taps; k++) {
        const float * from = layers[k] < last ? llama_get_embeddings_layer_inp(trunk, layers[k]) : llama_get_embeddings_nextn(trunk);
        if (!from) { all.clear(); return all; }
        for (size_t t = 0; t < ids.size(); t++) memcpy(&all[(t * taps + k) * width], from + t * width, width * sizeof(float));
    }
    return all;
}

static bool write_drafter(llama_model * model, llama_context * trunk, llama_context_params cp, llama_model_params mp, const char * path, const std::vector<llama_token> & ids, FILE * f) {
    llama_model * drafter = llama_model_load_from_file(path, mp);
    if (!drafter) return false;
    const std::vector<float> taps = taps_of(model, trunk, drafter, ids);
    if (taps.empty()) { fprintf(stderr, "the model gives no states\n"); return false; }
    const size_t count = ids.size(), wide = taps.size() / count, width = llama_model_n_embd(drafter);
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(drafter));
    cp.ctx_other = trunk;
    llama_context * ctx = llama_init_from_model(drafter, cp);
    if (!ctx) return false;
    llama_set_embeddings_nextn(ctx, true, true);
    char text[32];
    if (llama_model_meta_val_str(drafter, "general.architecture", text, sizeof(text)) < 0) return false;
    if (strcmp(text, "eagle3") == 0) {
        if (!run_rows(ctx, LLAMA_PROCESS_TYPE_ENCODE, { nullptr, &taps, wide, 0, true })) { fprintf(stderr, "encode failed\n"); return false; }
        const float * made = llama_get_embeddings_nextn(ctx);
        std::vector<float> states(made, made + count * width);
        const std::vector<llama_token> later(ids.begin() + 1, ids.end());
        for (int pass = 0; pass < 2; pass++) {
            llama_memory_clear(llama_get_memory(ctx), true);
            states.resize((count - 1) * width);
            if (!run_rows(ctx, LLAMA_PROCESS_TYPE_DECODE, { &later, &states, width, 0, true })) { fprintf(stderr, "decode failed\n"); return false; }
            const std::vector<float> none(vocabulary);
            fwrite(none.data(), 4, vocabulary, f);
            for (size_t t = 0; t + 1 < count; t++) fwrite(llama_get_logits_ith(ctx, t), 4, vocabulary, f);
            const float * own = llama_get_embeddings_nextn(ctx);
            states.assign(width, 0.0f);
            states.insert(states.end(), own, own + (count - 2) * width);
        }
        return true;
    }
    llama_set_causal_attn(ctx, llama_model_meta_val_str(drafter, "dflash.attention.causal", text, sizeof(text)) >= 0 && strcmp(text, "true") == 0);
    if (llama_model_meta_val_str(drafter, "dflash.block_size", text, sizeof(text)) < 0) return false;
    const size_t size = atoi(text);
    if (llama_model_meta_val_str(drafter, "tokenizer.ggml.mask_token_id", text, sizeof(text)) < 0) return false;
    const llama_token mask = atoi(text);
    std::vector<std::vector<float>> rows(size);
    for (size_t t = 0; t < count; t++) {
        llama_memory_clear(llama_get_memory(ctx), true);
        const std::vector<float> before(taps.begin(), taps.begin() + t * wide);
        if (t > 0 && !run_rows(ctx, LLAMA_PROCESS_TYPE_DECODE, { nullptr, &before, wide, 0, false })) { fprintf(stderr, "states failed\n"); return false; }
        std::vector<llama_token> block(size, mask);
        block[0] = ids[t];
        if (!run_rows(ctx, LLAMA_PROCESS_TYPE_DECODE, { &block, nullptr, 0, (llama_pos) t, true })) { fprintf(stderr, "block failed\n"); return false; }
        for (size_t j = 1; j < size; j++) {
            const float * row = llama_get_logits_ith(ctx, j);
            rows[j].insert(rows[j].end(), row, row + vocabulary);
        }
    }
    for (size_t j = 1; j < size; j++) fwrite(rows[j].data(), 4, rows[j].size(), f);
    return true;
}

int main(int argc, char ** argv) {
    if (argc < 5) return 2;
    const char * draft = strncmp(argv[argc - 1], "draft=", 6) == 0 ? argv[argc - 1] + 6 : nullptr;
    const char * lora = strncmp(argv[argc - 1], "lora=", 5) == 0 ? argv[argc - 1] + 5 : nullptr;
    std::string kind = argv[3];
    FILE * nodes = nullptr;
    if (kind.size() > 6 && kind.substr(kind.size() - 6) == "+nodes") {
        kind = kind.substr(0, kind.size() - 6);
        nodes = fopen((std::string(argv[2]) + ".nodes").c_str(), "wb");
    }
    if (!getenv("ORACLE_LOG")) llama_log_set([](ggml_log_level level, const char * text, void *) { if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr); }, nullptr);
    llama_backend_init();
    auto mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    mp.load_mtp = kind == "heads" && !draft;
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 1;
    auto cp = llama_context_default_params();
    cp.n_ctx = 256; cp.n_batch = 256; cp.n_ubatch = 256; cp.n_threads = 1; cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = GGML_TYPE_F32; cp.type_v = GGML_TYPE_F32;
    if (nodes) { cp.cb_eval = write_node; cp.cb_eval_user_data = nodes; }
    if (kind == "heads") { cp.cb_eval = take_state; cp.cb_eval_user_data = nodes; }
    const bool steps = kind == "steps";
    const bool vectors = kind == "vectors";
    if (kind == "flash") cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (vectors) { cp.embeddings = true; cp.pooling_type = LLAMA_POOLING_TYPE_NONE; }
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;
    if (lora) {
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, lora);
        float scale = 1.0f;
        if (!adapter || llama_set_adapters_lora(ctx, &adapter, 1, &scale) != 0) { fprintf(stderr, "the adapter was refused\n"); return 1; }
    }
    if (kind == "heads") {
        FILE * f = fopen(argv[2], "wb");
        cp.cb_eval = nullptr;
        const auto ids = ids_of(argv[4]);
        const bool done = draft ? write_drafter(model, ctx, cp, mp, draft, ids, f) : write_heads(model, ctx, cp, ids, f);
        fclose(f);
        return done ? 0 : 1;
    }
    const int width_logits = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (steps) {
        FILE * f = fopen(argv[2], "wb");
        int pos = 0;
        for (llama_token id : ids_of(argv[4])) {
            llama_batch one = batch_of({ id });
            one.pos[0] = pos++;
            if (llama_decode(ctx, one) != 0) { fprintf(stderr, "decode failed\n"); return 1; }
            fwrite(llama_get_logits_ith(ctx, 0), 4, width_logits, f);
        }
        fclose(f);
        return 0;
    }
    llama_batch batch = batch_of(ids_of(argv[4]));
    if (kind == "decoder") {
        if (llama_encode(ctx, batch) != 0) { fprintf(stderr, "encode failed\n"); return 1; }
        batch = batch_of(ids_of(argv[5]));
    }
    const bool encoder = vectors && llama_model_has_encoder(model) && !llama_model_has_decoder(model);
    if ((encoder ? llama_encode(ctx, batch) : llama_decode(ctx, batch)) != 0) { fprintf(stderr, "decode failed\n"); return 1; }
    const int width = vectors ? llama_model_n_embd(model) : width_logits;
    FILE * f = fopen(argv[2], "wb");
    for (int i = 0; i < batch.n_tokens; i++) {
        const float * row = vectors ? llama_get_embeddings_ith(ctx, i) : llama_get_logits_ith(ctx, i);
        if (!row) { fprintf(stderr, "row %d is absent\n", i); return 1; }
        fwrite(row, 4, width, f);
    }
    fclose(f);
    if (nodes) fclose(nodes);
    return 0;
}
