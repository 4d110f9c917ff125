/* Placement of buffers: `place_in_order` of tvm_cascade/memory/fit.py in a given order, and `improve_in_python` of
 * tvm_cascade/memory/local_search.py in many orders, with the same answers.
 *
 * What it does is told there; names are the same. Plain C11 without Python, called through ctypes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "random.h"

enum { PLACED = 1, ABOVE_LIMIT = 0, NO_MEMORY = -2, MANY = 300 };

typedef struct {
    int64_t low, high;
} Range;

static int by_low(const void *a, const void *b) {
    const Range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Put ranges into ascending order; by insertion where they are few, as they mostly are, or `nearly` in order. */
static void sort(Range *taken, int64_t count, int nearly) {
    if (count > MANY && !nearly) {
        qsort(taken, (size_t)count, sizeof(Range), by_low);
        return;
    }
    for (int64_t i = 1; i < count; i++) {
        Range moved = taken[i];
        int64_t k = i;
        for (; k > 0 && taken[k - 1].low > moved.low; k--) taken[k] = taken[k - 1];
        taken[k] = moved;
    }
}

/* The offset for a buffer, a multiple of `unit`, outside of the ascending ranges `taken` of forbidden offsets. */
static int64_t gap(int64_t unit, const Range *taken, int64_t count, int best_fit) {
    int64_t at = 0, best = -1, slack = 0;
    for (int64_t k = 0; k < count; k++) {
        if (at < taken[k].low) {
            if (!best_fit) return at;
            if (best < 0 || taken[k].low - at < slack) {
                best = at;
                slack = taken[k].low - at;
            }
        }
        if (taken[k].high > at) at = (taken[k].high + unit - 1) / unit * unit;
    }
    return best < 0 ? at : best;
}

/* What is placed. `spans` are triples (j, low, high), those of buffer i from `start[i]` on. */
typedef struct {
    int64_t n;
    const int64_t *start, *spans, *size, *alignment;
    Range *taken;
    int nearly; /* whether spans are in the order of offsets that are much like those to come */
} Buffers;

static int begin(Buffers *b) {
    int64_t most = 1;
    for (int64_t i = 0; i < b->n; i++)
        if (b->start[i + 1] - b->start[i] > most) most = b->start[i + 1] - b->start[i];
    b->taken = malloc((size_t)most * sizeof(Range));
    return b->taken != NULL;
}

/* The offset for buffer i beside what is placed; `offsets` of others are -1. */
static int64_t offset_of(const Buffers *b, int64_t i, int best_fit, const int64_t *offsets) {
    int64_t count = 0;
    for (int64_t k = b->start[i]; k < b->start[i + 1]; k++) {
        int64_t at = offsets[b->spans[3 * k]];
        if (at >= 0) b->taken[count++] = (Range){at + b->spans[3 * k + 1], at + b->spans[3 * k + 2]};
    }
    sort(b->taken, count, b->nearly);
    return gap(b->alignment[i], b->taken, count, best_fit);
}

/* Place all buffers in an order; the position of the first that is above the limit, `n` where none is.
 * `offsets` holds those of pinned buffers, else -1, and the result. A negative `limit` is none. */
static int64_t place(const Buffers *b, const int64_t *order, int best_fit, int64_t limit, int64_t *offsets) {
    for (int64_t p = 0; p < b->n; p++) {
        int64_t i = order[p];
        if (offsets[i] >= 0) continue;
        offsets[i] = offset_of(b, i, best_fit, offsets);
        if (limit >= 0 && offsets[i] + b->size[i] > limit) return p;
    }
    return b->n;
}

EXPORTED int tvm_cascade_place_in_order(int64_t n, const int64_t *order, int best_fit, const int64_t *start,
                                        const int64_t *spans, const int64_t *size, const int64_t *alignment,
                                        int64_t limit, int64_t *offsets) {
    Buffers b = {n, start, spans, size, alignment, NULL, 0};
    if (!begin(&b)) return NO_MEMORY;
    int answer = place(&b, order, best_fit, limit, offsets) == n ? PLACED : ABOVE_LIMIT;
    free(b.taken);
    return answer;
}

/* The position in `order` of a random buffer: half of the time of one that ends at the peak. */
static int64_t chosen(const Buffers *b, const int64_t *order, const int64_t *offsets, int64_t peak, uint64_t *random) {
    if (draw(random, 2)) return (int64_t)draw(random, (uint64_t)b->n);
    int64_t count = 0;
    for (int64_t p = 0; p < b->n; p++) count += offsets[order[p]] + b->size[order[p]] == peak;
    int64_t left = (int64_t)draw(random, (uint64_t)count), p = 0;
    for (;; p++)
        if (offsets[order[p]] + b->size[order[p]] == peak && left-- == 0) return p;
}

static int64_t top(const Buffers *b, const int64_t *offsets) {
    int64_t highest = 0;
    for (int64_t i = 0; i < b->n; i++)
        if (offsets[i] + b->size[i] > highest) highest = offsets[i] + b->size[i];
    return highest;
}

/* Put the spans of buffer i into the order of these offsets. */
static void sort_spans(const Buffers *b, int64_t i, int64_t *spans, const int64_t *offsets) {
    for (int64_t k = b->start[i] + 1; k < b->start[i + 1]; k++) {
        int64_t moved[3], to = k, low = offsets[spans[3 * k]] + spans[3 * k + 1];
        if (offsets[spans[3 * k - 3]] + spans[3 * k - 2] <= low) continue;
        memcpy(moved, spans + 3 * k, sizeof(moved));
        while (to > b->start[i] && offsets[spans[3 * to - 3]] + spans[3 * to - 2] > low) to--;
        memmove(spans + 3 * to + 3, spans + 3 * to, (size_t)(k - to) * sizeof(moved));
        memcpy(spans + 3 * to, moved, sizeof(moved));
    }
}

/* The best order so far, where first fit puts its buffers, and what a change of it may move.
 *
 * `fitted` are the offsets of first fit in this order as far as `known`, the first position that is above the peak. A buffer
 * lies elsewhere in a changed order only where one that was placed before it does, or where one that conflicts with it is
 * placed before it in one of the orders alone: such buffers are `stale`, all others stay where they are. */
typedef struct {
    int64_t *order, *position, *fitted, known;
    char *stale;
} Known;

static void make_stale(const Buffers *b, Known *k, int64_t i) {
    for (int64_t s = b->start[i]; s < b->start[i + 1]; s++) k->stale[b->spans[3 * s]] = 1;
}

/* Those that conflict with buffer i and lie between two positions of the order. */
static void make_stale_between(const Buffers *b, Known *k, int64_t i, int64_t first, int64_t last) {
    k->stale[i] = 1;
    for (int64_t s = b->start[i]; s < b->start[i + 1]; s++) {
        int64_t j = b->spans[3 * s];
        if (k->position[j] >= first && k->position[j] <= last) k->stale[j] = 1;
    }
}

/* Place the buffers of a changed order, the same as `k->order` before position `to`; whether all end within `limit`.
 * `placed` holds the offsets of pinned buffers, else -1, and the result. */
static int place_changed(const Buffers *b, Known *k, const int64_t *trial, int64_t to, int64_t from, int exchange,
                         int64_t limit, int64_t *placed) {
    int64_t same = to < k->known ? to : k->known;
    memset(k->stale, 0, (size_t)b->n);
    make_stale_between(b, k, k->order[from], to, from);
    if (exchange) make_stale_between(b, k, k->order[to], to, from);
    for (int64_t p = 0; p < same; p++) placed[trial[p]] = k->fitted[trial[p]];
    for (int64_t p = same; p < b->n; p++) {
        int64_t i = trial[p];
        if (placed[i] >= 0) continue;
        if (k->position[i] < k->known && !k->stale[i]) {
            placed[i] = k->fitted[i];
            continue;
        }
        placed[i] = offset_of(b, i, 0, placed);
        if (placed[i] + b->size[i] > limit) return 0;
        if (k->position[i] >= k->known || placed[i] != k->fitted[i]) make_stale(b, k, i);
    }
    return 1;
}

static void keep(const Buffers *b, Known *k, const int64_t *order, const int64_t *fitted, int64_t known) {
    memcpy(k->order, order, (size_t)b->n * sizeof(int64_t));
    memcpy(k->fitted, fitted, (size_t)b->n * sizeof(int64_t));
    for (int64_t p = 0; p < b->n; p++) k->position[order[p]] = p;
    k->known = known;
}

/* Make the offsets `placed`, and sort the spans of those that conflict with what has moved. */
static void take(const Buffers *b, Known *k, int64_t *spans, const int64_t *placed, int64_t *offsets) {
    if (b->n < 1) return;
    memset(k->stale, 0, (size_t)b->n);
    for (int64_t i = 0; i < b->n; i++)
        if (offsets[i] != placed[i]) make_stale(b, k, i);
    memcpy(offsets, placed, (size_t)b->n * sizeof(int64_t));
    for (int64_t i = 0; i < b->n; i++)
        if (k->stale[i]) sort_spans(b, i, spans, offsets);
}

/* `order`, `offsets` and `random` go on from call to call. `pinned` holds -1 for buffers that are not. */
EXPORTED int tvm_cascade_improve_arena(int64_t n, int64_t *order, const int64_t *start, const int64_t *spans,
                                       const int64_t *size, const int64_t *alignment, const int64_t *pinned,
                                       int64_t goal, int64_t tries, uint64_t *random, int64_t *offsets) {
    size_t bytes = (size_t)n * sizeof(int64_t), of_spans = 3 * (size_t)start[n] * sizeof(int64_t);
    int64_t *trial = malloc(4 * bytes + of_spans + (size_t)n), *placed = trial + n, *own = placed + 3 * n;
    Buffers b = {n, start, own, size, alignment, NULL, 1};
    Known k = {order, placed + n, placed + 2 * n, 0, (char *)(own + 3 * start[n])};
    if (!trial || !begin(&b)) {
        free(trial);
        return NO_MEMORY;
    }
    memcpy(own, spans, of_spans);
    for (int64_t i = 0; i < n; i++) sort_spans(&b, i, own, offsets);
    int64_t peak = top(&b, offsets);
    memcpy(placed, pinned, bytes);
    int64_t known = place(&b, order, 0, peak, placed);
    keep(&b, &k, order, placed, known);
    for (int64_t t = 0; t < tries && peak > goal; t++) {
        int64_t from = chosen(&b, order, offsets, peak, random), to = (int64_t)draw(random, (uint64_t)from + 1);
        int exchange = draw(random, 3) > 0;
        memcpy(trial, order, bytes);
        if (exchange) trial[from] = order[to];
        else memmove(trial + to + 1, order + to, (size_t)(from - to) * sizeof(int64_t));
        trial[to] = order[from];
        memcpy(placed, pinned, bytes);
        if (!place_changed(&b, &k, trial, to, from, exchange, peak, placed) || top(&b, placed) > peak) continue;
        keep(&b, &k, trial, placed, n);
        take(&b, &k, own, placed, offsets);
        peak = top(&b, offsets);
    }
    free(b.taken);
    free(trial);
    return PLACED;
}
