/* Demand-driven execution of a segment: `most_held_in_python` and `demanded_in_python` of
 * tvm_cascade/cascading/simulate.py, with the same answers.
 *
 * What it does is told there; names are the same. Plain C11 without Python, called through ctypes.
 */
#include <stdint.h>
#include <stdlib.h>

#include "exported.h"

enum { DONE = 1, NO_MEMORY = -2 };

/* Member o has done `count[o]` steps at the end; its producers are `maker[f]`, f in [feed_start[o], feed_start[o + 1]), of
 * which step k waits for `waits[f][k]` steps. Write w is by member `writer[w]`, ascending, whose step k leaves `made[w][k + 1]`
 * units; its readers are `reader[r]`, r in [reader_start[w], reader_start[w + 1]), which after k steps keep units from
 * `keep[r][k]` on. `most` holds ones, and the result. `trace`, unless it is NULL, gets the member of every step in order. */
EXPORTED int tvm_cascade_simulate(int64_t n, const int64_t *count, const int64_t *feed_start, const int64_t *maker,
                                   const int64_t *const *waits, int64_t sinks, const int64_t *sink, int64_t writes,
                                   const int64_t *writer, const int64_t *const *made, const int64_t *reader_start,
                                   const int64_t *reader, const int64_t *const *keep, int64_t *most, int64_t *trace) {
    int64_t *room = calloc((size_t)(4 * n + 4), sizeof(int64_t));
    if (!room) return NO_MEMORY;
    int64_t *done = room, *first = done + n, *pending = first + n + 1, *goal = pending + n + 1;
    for (int64_t w = 0; w < writes; w++) first[writer[w] + 1] = w + 1;
    for (int64_t o = 0; o < n; o++)
        if (first[o + 1] < first[o]) first[o + 1] = first[o];
    int64_t rounds = 0;
    for (int64_t s = 0; s < sinks; s++)
        if (count[sink[s]] > rounds) rounds = count[sink[s]];
    int64_t asked = rounds * sinks + n;
    for (int64_t a = 0; a < asked; a++) {
        int64_t left = asked - 1 - a, k = left >= n ? a / sinks : 0, depth = 1;
        pending[0] = left >= n ? sink[a % sinks] : left;
        goal[0] = left >= n ? (count[pending[0]] * (k + 1) + rounds - 1) / rounds : count[left];
        while (depth) {
            int64_t o = pending[depth - 1], step = done[o], f = feed_start[o];
            if (step >= goal[depth - 1]) {
                depth--;
                continue;
            }
            while (f < feed_start[o + 1] && done[maker[f]] >= waits[f][step]) f++;
            if (f < feed_start[o + 1]) {
                pending[depth] = maker[f];
                goal[depth++] = waits[f][step];
                continue;
            }
            for (int64_t w = first[o]; w < first[o + 1]; w++)
                for (int64_t r = reader_start[w]; r < reader_start[w + 1]; r++) {
                    int64_t live = made[w][step + 1] - keep[r][done[reader[r]]];
                    if (live > most[w]) most[w] = live;
                }
            done[o] = step + 1;
            if (trace) *trace++ = o;
        }
    }
    free(room);
    return DONE;
}
