/* Demand-driven execution of a segment: `Cascade` of tvm_cascade/cascading/simulate.py, which says what is simulated.
 *
 * tvm_cascade/cascading/simulate_in_python.py has the same in Python. Plain C11 without Python, called through ctypes.
 */
#include <stdint.h>
#include <stdlib.h>

#include "exported.h"

enum { DONE = 1, NO_MEMORY = -2 };

/* The steps of every operator and source of a graph, by number: `StepTables` in tvm_cascade/cascading/simulate_compiled.py.
 *
 * Index 1 is for operators that sum their input. Operator o takes `count[.][o]` steps; its producers are `maker[f]`, f in
 * [feed_start[o], feed_start[o + 1]), of which step k waits for `waits[2 * sums + maker sums][f][k]` steps. It writes roots
 * `root[w]`, w in [write_start[o], write_start[o + 1]); `made[.][w][k]` units exist after k steps. Root t is read by
 * `reader[r]`, r in [read_start[t], read_start[t + 1]), which after k steps keeps units from `keep[.][r][k]` on; NULL for an
 * input that is not read. Tables of operators that were never among the members may be missing. */
struct step_tables {
    int64_t operators;
    const int64_t *count[2];
    const int64_t *feed_start, *maker;
    const int64_t *const *waits[4];
    const int64_t *write_start, *root;
    const int64_t *const *made[2];
    const int64_t *read_start, *reader;
    const int64_t *const *keep[2];
};

struct list { /* of each member: places of members with their tables, [start[p], start[p + 1]) */
    int64_t *start, *place;
    const int64_t **table;
};

/* Runs the `n` members (ascending numbers; `sums`: 1 for those that sum their input) until all steps are done. `most`, unless
 * it is NULL, gets for every output of every member the most units live at once, at least 1; `trace`, unless it is NULL, the
 * place of the member of every step in order. */
EXPORTED int tvm_cascade_run_segment(const struct step_tables *g, int64_t n, const int64_t *member, const unsigned char *sums,
                                  int64_t *most, int64_t *trace) {
    int64_t feeds = 0, writes = 0, reads = 0;
    for (int64_t p = 0; p < n; p++) {
        int64_t o = member[p];
        feeds += g->feed_start[o + 1] - g->feed_start[o];
        for (int64_t w = g->write_start[o]; w < g->write_start[o + 1]; w++, writes++)
            reads += g->read_start[g->root[w] + 1] - g->read_start[g->root[w]];
    }
    int64_t *room = malloc((size_t)(g->operators + 7 * n + 5 + feeds + writes + reads) * sizeof(int64_t));
    const int64_t **tables = malloc((size_t)(feeds + writes + reads + 1) * sizeof(int64_t *));
    if (!room || !tables) {
        free(room);
        free(tables);
        return NO_MEMORY;
    }
    int64_t *place = room, *done = place + g->operators, *count = done + n, *pending = count + n, *goal = pending + n + 1;
    int64_t *sink = goal + n + 1, *first = sink + n;
    struct list feed = {first + n + 1, NULL, tables}, read = {NULL, NULL, tables + feeds};
    feed.place = feed.start + n + 1;
    read.start = feed.place + feeds;
    read.place = read.start + writes + 1;
    const int64_t **made = tables + feeds + reads;
    for (int64_t o = 0; o < g->operators; o++) place[o] = -1;
    for (int64_t p = 0; p < n; p++) place[member[p]] = p, done[p] = 0, count[p] = g->count[sums[p]][member[p]], sink[p] = 1;
    int64_t f = 0, w = 0, r = 0, rounds = 0, sinks = 0;
    for (int64_t p = 0; p < n; p++) {
        int64_t o = member[p];
        feed.start[p] = f;
        for (int64_t e = g->feed_start[o]; e < g->feed_start[o + 1]; e++) {
            int64_t m = place[g->maker[e]];
            if (m < 0) continue;
            sink[m] = 0;
            feed.place[f] = m;
            feed.table[f++] = g->waits[2 * sums[p] + sums[m]][e];
        }
        first[p] = w;
        for (int64_t e = g->write_start[o]; most && e < g->write_start[o + 1]; e++) {
            made[w] = g->made[sums[p]][e];
            most[w] = 1;
            read.start[w++] = r;
            for (int64_t k = g->read_start[g->root[e]]; k < g->read_start[g->root[e] + 1]; k++) {
                int64_t c = place[g->reader[k]];
                if (c < 0 || !g->keep[sums[c]][k]) continue;
                read.place[r] = c;
                read.table[r++] = g->keep[sums[c]][k];
            }
        }
    }
    feed.start[n] = f;
    first[n] = w;
    read.start[w] = r;
    for (int64_t p = 0; p < n; p++)
        if (sink[p]) {
            sink[sinks++] = p;
            if (count[p] > rounds) rounds = count[p];
        }
    int64_t asked = rounds * sinks + n;
    for (int64_t a = 0; a < asked; a++) {
        int64_t left = asked - 1 - a, k = left >= n ? a / sinks : 0, depth = 1;
        pending[0] = left >= n ? sink[a % sinks] : left;
        goal[0] = left >= n ? (count[pending[0]] * (k + 1) + rounds - 1) / rounds : count[left];
        while (depth) {
            int64_t p = pending[depth - 1], step = done[p], e = feed.start[p];
            if (step >= goal[depth - 1]) {
                depth--;
                continue;
            }
            while (e < feed.start[p + 1] && done[feed.place[e]] >= feed.table[e][step]) e++;
            if (e < feed.start[p + 1]) {
                pending[depth] = feed.place[e];
                goal[depth++] = feed.table[e][step];
                continue;
            }
            for (int64_t v = first[p]; v < first[p + 1]; v++)
                for (int64_t c = read.start[v]; c < read.start[v + 1]; c++) {
                    int64_t live = made[v][step + 1] - read.table[c][done[read.place[c]]];
                    if (live > most[v]) most[v] = live;
                }
            done[p] = step + 1;
            if (trace) *trace++ = p;
        }
    }
    free(tables);
    free(room);
    return DONE;
}
