/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Functions shared by the load generator and the floor server: reading a file into memory, the
 * clock, the CPU time and the resident size of another process, and a histogram of latencies.
 *
 * Everything is static and single-threaded; nothing here is freed, because both programs live for
 * one measurement.
 */
#ifndef MGLOOP_BENCH_COMMON_H
#define MGLOOP_BENCH_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(3);
}

static inline int64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline int64_t own_cpu_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The first field of schedstat is the time on a CPU in nanoseconds, exact to the context switch,
 * where /proc/PID/stat counts in ticks of 10 ms. */
static inline int64_t task_cpu_ns(int pid, int tid) {
  char path[64];
  long long value = 0;
  snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", pid, tid);
  FILE *f = fopen(path, "re");
  if (f == NULL) return 0;
  if (fscanf(f, "%lld", &value) != 1) value = 0;
  fclose(f);
  return value;
}

/* The process's own CPU clock, read from outside: it includes threads that have ended, which the
 * sum over /proc/PID/task has lost (a server with a thread per connection). */
static inline int64_t process_cpu_ns(int pid) {
  clockid_t clock;
  struct timespec ts;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) != 0) return 0;
  return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline long process_rss_kib(int pid) {
  char path[64];
  long pages = 0, total = 0;
  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  FILE *f = fopen(path, "re");
  if (f == NULL) return 0;
  if (fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
  fclose(f);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static char *read_file(const char *path, size_t *len) {
  FILE *f = fopen(path, "rbe");
  if (f == NULL) die(path);
  fseek(f, 0, SEEK_END);
  long size = ftell(f);
  rewind(f);
  char *data = malloc((size_t) size + 1);
  if (data == NULL || fread(data, 1, (size_t) size, f) != (size_t) size) die(path);
  fclose(f);
  *len = (size_t) size;
  return data;
}

static void raise_fd_limit(void) {
  struct rlimit lim;
  if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
  }
}

/* Log-linear: 64 steps per power of two, so a percentile is exact to 1.6 %. */
enum { HIST_SUB = 64, HIST_SUB_BITS = 6, HIST_SIZE = 44 * 64 };

struct hist {
  uint64_t count[HIST_SIZE];
  uint64_t total;
  int64_t max;
};

static inline void hist_add(struct hist *h, int64_t ns) {
  uint64_t v = ns < 1 ? 1 : (uint64_t) ns;
  int top = 63 - __builtin_clzll(v);
  int shift = top > HIST_SUB_BITS ? top - HIST_SUB_BITS : 0;
  size_t at = (size_t) shift * HIST_SUB + (size_t) (v >> shift);
  h->count[at < HIST_SIZE ? at : HIST_SIZE - 1]++;
  h->total++;
  if (ns > h->max) h->max = ns;
}

static inline double hist_us(const struct hist *h, double quantile) {
  double want = quantile * (double) h->total;
  uint64_t seen = 0;
  for (size_t i = 0; i < HIST_SIZE; i++) {
    seen += h->count[i];
    if (h->count[i] != 0 && (double) seen >= want) {
      size_t shift = i < 2 * HIST_SUB ? 0 : i / HIST_SUB - 1;
      double low = (double) ((uint64_t) (i - shift * HIST_SUB) << shift);
      double ns = low + (double) ((uint64_t) 1 << shift) / 2;
      return (ns < (double) h->max ? ns : (double) h->max) / 1000.0;
    }
  }
  return (double) h->max / 1000.0;
}

#endif
