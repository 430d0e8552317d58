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
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

enum { MGL_TCP, MGL_UNIX, MGL_DATAGRAM, MGL_PIPE, MGL_TLS, MGL_OTHER, MGL_CONNECTION_KINDS };

typedef struct {
    int64_t accepted; /* by a listener, or by a server-side handshake */
    int64_t opened;   /* connection_made() */
    int64_t closed;   /* connection_lost() */
} mgl_connections;

typedef struct {
    int64_t iterations;
    int64_t polls; /* epoll_wait() calls */
    int64_t events;
    int64_t most_events; /* in one poll */
    int64_t callbacks;
    int64_t timers; /* expired timers */
    /* Values of the last iteration, for other threads. */
    int64_t ready, timers_pending, timers_cancelled;
    int64_t most_ready;
    int64_t threadsafe_calls;
    int64_t bytes_received, bytes_sent;
    int64_t reads, writes; /* system calls */
    int64_t reads_blocked, writes_blocked; /* system calls that failed with EAGAIN */
    int64_t deferred_writes; /* write() calls deferred to the end of the iteration */
    int64_t deferred_sends;  /* system calls that sent them */
    int64_t pauses;          /* pause_writing() */
    int64_t handshakes, handshakes_failed;
    int64_t executor_jobs, children;
    int64_t stalls; /* detected by a watchdog, and counted in its thread */
    mgl_connections connections[MGL_CONNECTION_KINDS];
} mgl_counters;

static inline int64_t mgl_counted(const int64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* Only one thread at a time may increment a counter. */
static inline void mgl_count(int64_t *counter, int64_t n) {
    __atomic_store_n(counter, mgl_counted(counter) + n, __ATOMIC_RELAXED);
}

static inline void mgl_note(int64_t *level, int64_t n) { __atomic_store_n(level, n, __ATOMIC_RELAXED); }

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
