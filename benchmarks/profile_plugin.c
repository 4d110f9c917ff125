/* QEMU plugin: how often every block of code ran, and how often it was left by a taken branch, between marked addresses.
 *
 *   -plugin profile_plugin.so,out=FILE,marks=FILE
 *
 * marks has one hexadecimal address a line. Where code at one of them begins, a line "mark ADDRESS" is written behind
 * the counts since the last one, "START END COUNT TAKEN" for every block that ran.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

struct block {
  uint64_t start, end, count, taken;
  bool mark;
  struct block *next;
};
static struct block *blocks, *last;
static uint64_t marks[4096];
static size_t marked;
static FILE *out;

static void dump(void) {
  for (struct block *b = blocks; b; b = b->next) {
    if (b->count) fprintf(out, "%" PRIx64 " %" PRIx64 " %" PRIu64 " %" PRIu64 "\n", b->start, b->end, b->count, b->taken);
    b->count = b->taken = 0;
  }
}

static void ran(unsigned cpu, void *data) {
  struct block *b = data;
  (void)cpu;
  if (last && last->end != b->start) ++last->taken;
  if (b->mark) {
    dump();
    fprintf(out, "mark %" PRIx64 "\n", b->start);
  }
  ++b->count;
  last = b;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  struct qemu_plugin_insn *end = qemu_plugin_tb_get_insn(tb, n - 1);
  uint64_t start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  struct block *b = NULL;
  (void)id;
  for (b = blocks; b; b = b->next)
    if (b->start == start && b->end == qemu_plugin_insn_vaddr(end) + qemu_plugin_insn_size(end)) break;
  if (!b) {
    b = calloc(1, sizeof *b);
    b->start = start;
    b->end = qemu_plugin_insn_vaddr(end) + qemu_plugin_insn_size(end);
    for (size_t k = 0; k < marked; ++k) b->mark |= marks[k] == start;
    b->next = blocks;
    blocks = b;
  }
  qemu_plugin_register_vcpu_tb_exec_cb(tb, ran, 0, b);
}

static void finished(qemu_plugin_id_t id, void *data) {
  (void)id, (void)data;
  dump();
  fclose(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
  (void)info;
  for (int k = 0; k < argc; ++k) {
    if (!strncmp(argv[k], "out=", 4)) out = fopen(argv[k] + 4, "w");
    if (!strncmp(argv[k], "marks=", 6)) {
      FILE *f = fopen(argv[k] + 6, "r");
      while (f && marked < 4096 && fscanf(f, "%" SCNx64, &marks[marked]) == 1) ++marked;
      if (f) fclose(f);
    }
  }
  if (!out) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finished, NULL);
  return 0;
}
