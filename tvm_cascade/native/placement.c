/* Placement of buffers in a given order: `place_in_order` of tvm_cascade/memory/fit.py, with the same answers.
 *
 * What it does is told there; names are the same. Plain C11 without Python, called through ctypes.
 */
#include <stdint.h>
#include <stdlib.h>

#include "exported.h"

enum { PLACED = 1, ABOVE_LIMIT = 0, NO_MEMORY = -2, MANY = 300 };

typedef struct {
    int64_t low, high;
} Range;

static int by_low(const void *a, const void *b) {
    const Range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Put ranges into ascending order; by insertion where they are few, as they mostly are: twice as fast. */
static void sort(Range *taken, int64_t count) {
    if (count > MANY) {
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

/* `spans` are triples (j, low, high), those of buffer i from `start[i]` on. `offsets` holds -1 for buffers that are not
 * pinned, and the result. A negative `limit` is none. */
EXPORTED int tvm_cascade_place_in_order(int64_t n, const int64_t *order, int best_fit, const int64_t *start,
                                        const int64_t *spans, const int64_t *size, const int64_t *alignment,
                                        int64_t limit, int64_t *offsets) {
    int64_t most = 1;
    for (int64_t i = 0; i < n; i++)
        if (start[i + 1] - start[i] > most) most = start[i + 1] - start[i];
    Range *taken = malloc((size_t)most * sizeof(Range));
    if (!taken) return NO_MEMORY;
    int answer = PLACED;
    for (int64_t p = 0; p < n && answer == PLACED; p++) {
        int64_t i = order[p], count = 0;
        if (offsets[i] >= 0) continue;
        for (int64_t k = start[i]; k < start[i + 1]; k++) {
            int64_t at = offsets[spans[3 * k]];
            if (at >= 0) taken[count++] = (Range){at + spans[3 * k + 1], at + spans[3 * k + 2]};
        }
        sort(taken, count);
        int64_t place = gap(alignment[i], taken, count, best_fit);
        if (limit >= 0 && place + size[i] > limit) answer = ABOVE_LIMIT;
        offsets[i] = place;
    }
    free(taken);
    return answer;
}
