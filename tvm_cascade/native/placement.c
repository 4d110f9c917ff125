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

/* Place what comes from position `first` of the order on; the position that is above the limit, `n` where none is.
 * `offsets` holds those of what is placed already, else -1, and the result. A negative `limit` is none. */
static int64_t place(const Buffers *b, const int64_t *order, int64_t first, int best_fit, int64_t limit,
                     int64_t *offsets) {
    for (int64_t p = first; p < b->n; p++) {
        int64_t i = order[p], count = 0;
        if (offsets[i] >= 0) continue;
        for (int64_t k = b->start[i]; k < b->start[i + 1]; k++) {
            int64_t at = offsets[b->spans[3 * k]];
            if (at >= 0) b->taken[count++] = (Range){at + b->spans[3 * k + 1], at + b->spans[3 * k + 2]};
        }
        sort(b->taken, count, b->nearly);
        offsets[i] = gap(b->alignment[i], b->taken, count, best_fit);
        if (limit >= 0 && offsets[i] + b->size[i] > limit) return p;
    }
    return b->n;
}

EXPORTED int tvm_cascade_place_in_order(int64_t n, const int64_t *order, int best_fit, const int64_t *start,
                                        const int64_t *spans, const int64_t *size, const int64_t *alignment,
                                        int64_t limit, int64_t *offsets) {
    Buffers b = {n, start, spans, size, alignment, NULL, 0};
    if (!begin(&b)) return NO_MEMORY;
    int answer = place(&b, order, 0, best_fit, limit, offsets) == n ? PLACED : ABOVE_LIMIT;
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

/* Put the spans of every buffer into the order of these offsets. */
static void sort_spans(const Buffers *b, int64_t *spans, const int64_t *offsets) {
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t k = b->start[i] + 1; k < b->start[i + 1]; k++) {
            int64_t moved[3], to = k, low = offsets[spans[3 * k]] + spans[3 * k + 1];
            memcpy(moved, spans + 3 * k, sizeof(moved));
            while (to > b->start[i] && offsets[spans[3 * to - 3]] + spans[3 * to - 2] > low) to--;
            memmove(spans + 3 * to + 3, spans + 3 * to, (size_t)(k - to) * sizeof(moved));
            memcpy(spans + 3 * to, moved, sizeof(moved));
        }
}

/* `order`, `offsets` and `random` go on from call to call. `pinned` holds -1 for buffers that are not.
 *
 * What comes before the first position that a change touches lies where first fit in the order before put it: `fitted`, as
 * far as `known`. */
EXPORTED int tvm_cascade_improve_arena(int64_t n, int64_t *order, const int64_t *start, const int64_t *spans,
                                       const int64_t *size, const int64_t *alignment, const int64_t *pinned,
                                       int64_t goal, int64_t tries, uint64_t *random, int64_t *offsets) {
    size_t bytes = (size_t)n * sizeof(int64_t), of_spans = 3 * (size_t)start[n] * sizeof(int64_t);
    int64_t *trial = malloc(3 * bytes + of_spans), *placed = trial + n, *fitted = placed + n, *own = fitted + n;
    Buffers b = {n, start, own, size, alignment, NULL, 1};
    if (!trial || !begin(&b)) {
        free(trial);
        return NO_MEMORY;
    }
    memcpy(own, spans, of_spans);
    sort_spans(&b, own, offsets);
    int64_t peak = top(&b, offsets);
    memcpy(fitted, pinned, bytes);
    int64_t known = place(&b, order, 0, 0, peak, fitted);
    for (int64_t t = 0; t < tries && peak > goal; t++) {
        int64_t from = chosen(&b, order, offsets, peak, random), to = (int64_t)draw(random, (uint64_t)from + 1);
        int exchange = draw(random, 3) > 0;
        memcpy(trial, order, bytes);
        if (exchange) trial[from] = order[to];
        else memmove(trial + to + 1, order + to, (size_t)(from - to) * sizeof(int64_t));
        trial[to] = order[from];
        memcpy(placed, pinned, bytes);
        int64_t same = to < known ? to : known;
        for (int64_t p = 0; p < same; p++) placed[order[p]] = fitted[order[p]];
        if (place(&b, trial, same, 0, peak, placed) < n || top(&b, placed) > peak) continue;
        memcpy(order, trial, bytes);
        memcpy(fitted, placed, bytes);
        known = n;
        if (memcmp(offsets, placed, bytes) != 0) sort_spans(&b, own, placed);
        memcpy(offsets, placed, bytes);
        peak = top(&b, offsets);
    }
    free(b.taken);
    free(trial);
    return PLACED;
}
