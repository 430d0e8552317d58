/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The counters of a loop since its creation.
 *
 * Native because they are incremented per callback and per packet. The loop's thread writes them, and
 * other threads may read them at the same time. A reader sees a consistent value of each counter, but
 * the values are not from the same instant. The counters are therefore accessed with relaxed atomic
 * operations, which cost nothing extra. */
#ifndef MGLOOP_COUNTERS_H
#define MGLOOP_COUNTERS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

enum { MGL_TCP, MGL_UNIX, MGL_DATAGRAM, MGL_PIPE, MGL_TLS, MGL_OTHER, MGL_CONNECTION_KINDS };

typedef struct {
    int64_t accepted; /* by a listener, or by a server-side handshake */
    int64_t opened;   /* connection_made() */
    int64_t closed;   /* connection_lost() */
} mgl_connections;

/* All counters and gauges that are one number. The names are those of the fields of LoopStats (stats.py),
 * which describes them. To add one, add it here and there. */
#define MGL_COUNTERS(COUNTER) \
    COUNTER(iterations) \
    COUNTER(polls) \
    COUNTER(events) \
    COUNTER(most_events) \
    COUNTER(callbacks) \
    COUNTER(timers) \
    COUNTER(timers_cancelled) /* these three: values of the last iteration, for other threads */ \
    COUNTER(timers_pending) \
    COUNTER(ready) \
    COUNTER(most_ready) \
    COUNTER(threadsafe_calls) \
    COUNTER(bytes_received) \
    COUNTER(bytes_sent) \
    COUNTER(reads) \
    COUNTER(reads_blocked) \
    COUNTER(writes) \
    COUNTER(writes_blocked) \
    COUNTER(deferred_writes) \
    COUNTER(deferred_sends) \
    COUNTER(pauses) \
    COUNTER(handshakes) \
    COUNTER(handshakes_failed) \
    COUNTER(executor_jobs) \
    COUNTER(children) \
    COUNTER(stalls) /* counted in the thread of a watchdog */

#define MGL_FIELD(name) int64_t name;
typedef struct {
    MGL_COUNTERS(MGL_FIELD)
    mgl_connections connections[MGL_CONNECTION_KINDS];
} mgl_counters;
#undef MGL_FIELD

typedef struct {
    const char *name;
    size_t offset; /* in mgl_counters */
} mgl_counter_entry;

/* Returns the i-th entry of MGL_COUNTERS, or NULL after the last one. */
static inline const mgl_counter_entry *mgl_counter_entry_at(size_t i) {
#define MGL_ENTRY(name) {#name, offsetof(mgl_counters, name)},
    static const mgl_counter_entry entries[] = {MGL_COUNTERS(MGL_ENTRY)};
#undef MGL_ENTRY
    return i < sizeof(entries) / sizeof(*entries) ? &entries[i] : NULL;
}

static inline int64_t *mgl_counter_of(mgl_counters *c, const mgl_counter_entry *entry) {
    return (int64_t *) ((char *) c + entry->offset);
}

static inline int64_t mgl_counted(const int64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* Only one thread at a time may increment a counter. */
static inline void mgl_count(int64_t *counter, int64_t n) {
    __atomic_store_n(counter, mgl_counted(counter) + n, __ATOMIC_RELAXED);
}

static inline void mgl_store(int64_t *gauge, int64_t n) { __atomic_store_n(gauge, n, __ATOMIC_RELAXED); }

static inline void mgl_count_most(int64_t *counter, int64_t n) {
    if (n > mgl_counted(counter)) __atomic_store_n(counter, n, __ATOMIC_RELAXED);
}

/* Count a system call that has read or sent n bytes, or failed (n < 0). errno is preserved. */
static inline void mgl_count_read(mgl_counters *c, ssize_t n) {
    mgl_count(&c->reads, 1);
    if (n >= 0)
        mgl_count(&c->bytes_received, n);
    else if (errno == EAGAIN)
        mgl_count(&c->reads_blocked, 1);
}

static inline void mgl_count_write(mgl_counters *c, ssize_t n) {
    mgl_count(&c->writes, 1);
    if (n >= 0)
        mgl_count(&c->bytes_sent, n);
    else if (errno == EAGAIN)
        mgl_count(&c->writes_blocked, 1);
}

#endif
