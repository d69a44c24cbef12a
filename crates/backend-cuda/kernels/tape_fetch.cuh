// The warp of a tape's block that fetches.
#pragma once
#include "tape_parts.cuh"

// Words of the other set are those of the next step: none of them is there yet.
static __device__ __forceinline__ void clear_words(u32 *words, u32 first, u32 end) {
    Front &f = front();
    u32 *next = words + (f.state.set ? 0 : f.tape.apart);
    for (u32 i = first + (threadIdx.x & 31); words && i < end; i += 32) next[i] = 0, prefetch(words + f.state.set + i);
}

// Rows of a weight, and their scales, which may begin inside of 16 bytes: where these begin in the slot.
static __device__ __forceinline__ u32 rows_bytes(const Piece &p, u32 o, u32 units, u32 *front, u32 *scales) {
    *front = p.scale_bytes ? (u32)(u64)(p.scales + (u64)o * p.scale_bytes) & 15 : 0;
    *scales = p.scale_bytes ? (*front + units * p.scale_bytes + 15) & ~15u : 0;
    return units * p.row_bytes;
}

static __device__ __forceinline__ void fetch_rows(const Piece &p, u32 o, u32 units, u32 to, u32 bytes, u32 front, u32 scales, u32 bar) {
    bulk_copy(to, p.data + (u64)o * p.row_bytes, bytes, bar);
    if (scales) bulk_copy(to + bytes, p.scales + (u64)o * p.scale_bytes - front, scales, bar);
}

// Asks for instructions as far ahead as they are wanted, and waits for one. Lanes stay together: one that fell behind would wait for a
// barrier that has moved on twice, or read an instruction that is no longer there.
static __device__ __forceinline__ const Instr &bring_instr(const Tape &t, u32 phase, u32 &asked) {
    Front &f = front();
    for (; asked < min(t.count, phase + LOOK); asked++) {
        u32 at = asked % AHEAD, bar = shared_address(f.here + at);
        if (asked >= AHEAD) bar_wait(shared_address(f.done + at), (asked / AHEAD - 1) & 1);
        if ((threadIdx.x & 31) == 0) {
            bar_expect(bar, sizeof(Instr));
            bulk_copy(shared_address(f.instrs + at), t.instrs + asked, sizeof(Instr), bar);
        }
        __syncwarp();
    }
    bar_wait(shared_address(f.here + phase % AHEAD), phase / AHEAD & 1);
    __syncwarp();
    return f.instrs[phase % AHEAD];
}

static __device__ __forceinline__ void clear_next(const Instr &in) {
    if (in.kind == ATTEND) {
        const Attention &a = *(const Attention *)in.body;
        u32 all = a.cache.k.width / a.kv_heads * a.heads, each = (all + gridDim.x - 1) / gridDim.x;
        clear_words(a.words, min(all, blockIdx.x * each), min(all, (blockIdx.x + 1) * each));
    } else if (in.kind == PRODUCTS) {
        const Product &p = *(const Product *)in.body;
        clear_words(p.words, share(p, blockIdx.x), share(p, blockIdx.x + 1));
    }
}

// What is cached, and the words, on their way to the cache of the second level.
static __device__ __forceinline__ void prefetch_cached(const Attention &a) {
    Front &f = front();
    u32 lane = threadIdx.x & 31, pos = f.state.pos, slot = f.state.slot, high = pos + 1;
    u32 low = a.window && high > a.window ? high - a.window : 0, first = low / SPLIT;
    // No more than a block begins with: what comes later it asks for itself, in time.
    u32 kvs = a.kv_heads, items = min(kvs * (pos / SPLIT - first + 1), 2 * gridDim.x), dim = a.cache.k.width / kvs;
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        u32 split = first + item / kvs, kv = item % kvs;
        for (u32 tile = split * SPLIT; tile < min((split + 1) * SPLIT, high); tile += 32) {
            Place at = place(a.cache, slot, tile);
            if (!at.block || tile + lane >= high) continue;
            const u8 *k = at.block + a.cache.k.offset + ((u64)(at.entry + lane) * a.cache.k.width + kv * dim) * 2;
            const u8 *v = at.block + a.cache.v.offset + ((u64)(at.entry + lane) * a.cache.v.width + kv * dim) * 2;
            prefetch(k), prefetch(v);
            if (dim > 64) prefetch(k + 128), prefetch(v + 128);
        }
    }
    if (lane == 0 && blockIdx.x * 32 < dim) {
        if (a.wq) prefetch(a.wq + blockIdx.x * 32);
        if (a.wk) prefetch(a.wk + blockIdx.x * 32);
    }
}

static __device__ __forceinline__ void prefetch_norm(const Product &p) {
    if ((threadIdx.x & 31) == 0 && p.w && blockIdx.x * 32 < p.k) prefetch(p.w + blockIdx.x * 32);
}

static __device__ __forceinline__ void fetch_all(const Tape &t) {
    Front &f = front();
    u32 lane = threadIdx.x & 31, base = shared_address(whole), asked = 0, ring = 0, round = 0;
    for (u32 phase = 0; phase < t.count; phase++) {
        const Instr &in = bring_instr(t, phase, asked);
        clear_next(in);
        if (!(f.state.live >> in.lead & 1)) continue;
        if (in.kind == ATTEND) prefetch_cached(*(const Attention *)in.body);
        if (in.kind != PRODUCTS) continue;
        const Product &p = *(const Product *)in.body;
        u32 at = share(p, blockIdx.x), end = share(p, blockIdx.x + 1), turn = 0;
        prefetch_norm(p);
        while (at < end) {
            u32 part = 0;
            while (at >= p.parts[part].end) part++;
            const Piece &piece = p.parts[part];
            u32 o = part ? at - p.parts[part - 1].end : at, units = min(min(piece.end, end) - at, piece.per_slot);
            u32 full = shared_address(f.full + ring), to = base + slot_at(t, ring);
            if (round > 0) bar_wait(shared_address(f.empty + ring), (round - 1) & 1);
            u32 r = together(units, p.gated, piece.dtype, p.k);
            if (lane == 0) {
                u32 front_a, front_b = 0, scales_a, scales_b = 0, bytes_b = 0, rows = (r >> 1) + (p.gated ? 1 : 0), sums = sums_by(piece.dtype);
                u32 bytes_a = rows_bytes(piece, o, units, &front_a, &scales_a), second = bytes_a + scales_a;
                const Piece &gate = p.parts[1];
                if (p.gated) bytes_b = rows_bytes(gate, o, units, &front_b, &scales_b);
                bool scaled = piece.scale || piece.bias || p.gated && (gate.scale || gate.bias);
                if (p.gated && piece.dtype != gate.dtype) sums = SUM_MIXED;
                else if (rows > 0 && is_short(piece.dtype, p.k)) sums += SUM_HALVES;
                bool plain = p.kind == NORM_RMS && p.w && !p.b;
                Header &h = f.headers[ring];
                h.data = to - base, h.scales = to - base + bytes_a + front_a;
                h.gate = to - base + second, h.gate_scales = to - base + second + bytes_b + front_b;
                h.row_bytes = piece.row_bytes, h.scale_bytes = piece.scale_bytes;
                h.gate_bytes = gate.row_bytes, h.gate_scale_bytes = gate.scale_bytes;
                h.units = units, h.at = at, h.o = o, h.turn = turn % WARPS;
                h.sums = sums + rows, h.part = part;
                h.row = p.kind == NORM_NONE ? ROW_PLAIN : !plain ? ROW_OTHER : p.k <= 1024 ? ROW_1024 : p.k <= 2048 ? ROW_2048 : ROW_LONG;
                h.what = (at + units == end ? LAST : 0) | (p.gated ? GATED : 0) | (p.add.x || p.add.words ? ADDS : 0) | (scaled ? SCALED : 0)
                       | (piece.y ? OUT : 0) | (p.words ? WORDS : 0);
                bar_expect(full, second + bytes_b + scales_b);
                fetch_rows(piece, o, units, to, bytes_a, front_a, scales_a, full);
                if (p.gated) fetch_rows(gate, o, units, to + second, bytes_b, front_b, scales_b, full);
            }
            __syncwarp();
            turn += (units + r - 1) >> (r >> 1);
            at += units;
            if (++ring == t.slots) ring = 0, round++;
        }
    }
}
