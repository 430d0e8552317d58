/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The load generator for everything except HTTP: one thread, edge-triggered epoll, no allocation
 * during a measurement. A Python client would be the bottleneck of every benchmark here.
 *
 * Each connection sends the request, waits for exactly the reply, and starts again. Every reply is
 * compared with the expected bytes, so a server that is fast because it is wrong counts as errors.
 * The server's CPU time is read here, at the first and the last instant of the measured window,
 * because scheduling would delay a parent process that read it.
 *
 *   client --kind tcp|unix|udp|pipe|tls --mode pingpong|accept|send|recv
 *          --request FILE --reply FILE [--reply-repeat N] [--hello FILE]
 *          [--host A] [--port N] [--path P] [--fds READ,WRITE]
 *          [--conns N] [--idle N] [--warmup SECONDS] [--seconds SECONDS] --pid SERVER,...
 *
 *   pingpong  request, reply, request ... on persistent connections
 *   accept    connect, request, reply, close; then again
 *   send      one way to the server; after the window the server reports how many bytes it received
 *   recv      one request, then the server sends as fast as it can
 *
 * --hello is sent first, and answered by a head that ends in an empty line (a WebSocket's upgrade).
 * Prints one line of JSON. Exit status 3 and a line on stderr if it could not start.
 */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifdef BENCH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
static SSL_CTX *ssl_ctx;
#endif

enum kind { TCP, UNIX, UDP, PIPE, TLS };
enum mode { PINGPONG, ACCEPT, SEND, RECV };
enum state { CONNECTING, HELLO, ACTIVE, DEAD };

/* A connection without its reply for this long has stalled; the run ends when all have. */
static const int64_t STALL_NS = 3000000000;
/* A datagram unanswered for this long was lost: counted, and sent again. */
static const int64_t LOST_NS = 200000000;
/* Bulk transfer counts in units of this size. */
enum { BULK_UNIT = 65536, SOURCES = 16 };

struct conn {
  int fd, out_fd;
  enum state state;
  size_t out_off;   /* of the request (or the hello) */
  size_t in_off;    /* of the reply */
  size_t head;      /* how many of CR LF CR LF were matched in the answer to the hello */
  int64_t started;
  int served;       /* had its first reply */
#ifdef BENCH_TLS
  SSL *ssl;
#endif
};

static enum kind kind = TCP;
static enum mode mode = PINGPONG;
static const char *host = "127.0.0.1", *path = "";
static int port, nconns = 1, nidle;
static int server_pids[16], nservers;
static int fds[2] = {-1, -1};
static double warmup_s = 0.1, seconds = 0.5;
static char *request, *reply, *hello;
static size_t request_len, reply_unit, reply_len, reply_repeat = 1, hello_len;

static int epfd;
static struct conn *conns;
static char buffer[256 * 1024];
static struct hist hist;
static uint64_t ops, bulk_bytes, mismatched, closed, refused, stalled, lost;
static uint64_t sent_total;
static int measuring, alive;
static int64_t last_progress;
static unsigned next_source;

static void fail(struct conn *c, uint64_t *counter) {
  if (c->state == DEAD) return;
  (*counter)++;
  c->state = DEAD;
  alive--;
#ifdef BENCH_TLS
  if (c->ssl != NULL) SSL_free(c->ssl);
  c->ssl = NULL;
#endif
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
}

/* -1 with errno EAGAIN when it would block; 0 is end of file. */
static ssize_t get(struct conn *c, char *data, size_t len) {
#ifdef BENCH_TLS
  if (c->ssl != NULL) {
    int n = SSL_read(c->ssl, data, (int) len);
    if (n > 0) return n;
    int err = SSL_get_error(c->ssl, n);
    ERR_clear_error();
    errno = err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return err == SSL_ERROR_ZERO_RETURN ? 0 : -1;
  }
#endif
  if (kind == PIPE) return read(c->fd, data, len);
  return recv(c->fd, data, len, 0);
}

static ssize_t put(struct conn *c, const char *data, size_t len) {
#ifdef BENCH_TLS
  if (c->ssl != NULL) {
    int n = SSL_write(c->ssl, data, (int) len);
    if (n > 0) return n;
    int err = SSL_get_error(c->ssl, n);
    ERR_clear_error();
    errno = err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
  }
#endif
  if (kind == PIPE) return write(c->out_fd, data, len);
  return send(c->fd, data, len, MSG_NOSIGNAL);
}

/* One address per few thousand connections: each has its own range of ephemeral ports, so neither
 * 10,000 idle connections nor the TIME_WAITs of a connect-and-close benchmark run out of them. */
static int open_socket(int blocking) {
  int one = 1;
  int family = kind == UNIX ? AF_UNIX : AF_INET;
  int type = kind == UDP ? SOCK_DGRAM : SOCK_STREAM;
  int fd = socket(family, type | SOCK_CLOEXEC | (blocking ? 0 : SOCK_NONBLOCK), 0);
  if (fd < 0) return -1;
  if (family == AF_UNIX) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *) &un, sizeof un) == 0) return fd;
  } else {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t) port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    inet_pton(AF_INET, host, &in.sin_addr);
    from.sin_addr.s_addr = htonl(0x7f000002u + next_source++ % SOURCES);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (kind != UDP) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      if ((ntohl(in.sin_addr.s_addr) >> 24) == 127) bind(fd, (struct sockaddr *) &from, sizeof from);
    }
    if (connect(fd, (struct sockaddr *) &in, sizeof in) == 0 || errno == EINPROGRESS) return fd;
  }
  close(fd);
  return -1;
}

static void start(struct conn *c) {
  c->out_off = c->in_off = 0;
  c->started = now_ns();
}

static int begin(struct conn *c, int blocking) {
  c->state = DEAD;
  c->fd = c->out_fd = -1;
  if (kind == PIPE) {
    c->fd = fds[0];
    c->out_fd = fds[1];
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    fcntl(c->out_fd, F_SETFL, O_NONBLOCK);
  } else {
    c->fd = c->out_fd = open_socket(blocking);
    if (c->fd < 0) {
      refused++;
      return 0;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
  }
#ifdef BENCH_TLS
  if (kind == TLS) {
    c->ssl = SSL_new(ssl_ctx);
    SSL_set_fd(c->ssl, c->fd);
    SSL_set_connect_state(c->ssl);
  }
#endif
  c->state = hello_len > 0 ? HELLO : ACTIVE;
  c->head = 0;
  alive++;
  start(c);
  struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
  if (epoll_ctl(epfd, EPOLL_CTL_ADD, c->fd, &ev) < 0) die("epoll_ctl");
  if (kind == PIPE && epoll_ctl(epfd, EPOLL_CTL_ADD, c->out_fd, &ev) < 0) die("epoll_ctl");
  return 1;
}

static void finished(struct conn *c) {
  int64_t now = now_ns();
  last_progress = now;
  c->served = 1;
  if (measuring) {
    ops++;
    hist_add(&hist, now - c->started);
  }
  if (mode == ACCEPT) {
#ifdef BENCH_TLS
    if (c->ssl != NULL) {
      SSL_shutdown(c->ssl);
      SSL_free(c->ssl);
      c->ssl = NULL;
    }
#endif
    close(c->fd);
    c->fd = -1;
    alive--;
    begin(c, 0);
    return;
  }
  start(c);
}

/* A small reply is compared completely. Of a large one only the data of one recv() up to 4 KiB and
 * all bytes of its end are compared, so that the generator stays faster than the server. */
static int matches(size_t at, const char *data, size_t len) {
  while (len > 0) {
    size_t off = at % reply_unit;
    size_t n = reply_unit - off < len ? reply_unit - off : len;
    size_t check = n > 4096 ? 4096 : n;
    if (memcmp(reply + off, data, check) != 0) return 0;
    if (n > check && memcmp(reply + off + n - 64, data + n - 64, 64) != 0) return 0;
    at += n;
    data += n;
    len -= n;
  }
  return 1;
}

/* A bulk transfer that never blocks must let the main loop check its clock: return true every
 * 50 ms, and re-arm the descriptor so that epoll reports its edge again. */
static int yields(struct conn *c) {
  if (last_progress - c->started < 50000000) return 0;
  c->started = last_progress;
  struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
  epoll_ctl(epfd, EPOLL_CTL_MOD, c->fd, &ev);
  return 1;
}

static void pump_out(struct conn *c) {
  const char *data = c->state == HELLO ? hello : request;
  size_t len = c->state == HELLO ? hello_len : request_len;
  for (;;) {
    while (c->out_off < len) {
      ssize_t n = put(c, data + c->out_off, len - c->out_off);
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != ENOTCONN) fail(c, &closed);
        return;
      }
      c->out_off += (size_t) n;
      if (mode == SEND) {
        sent_total += (uint64_t) n;
        last_progress = now_ns();
        if (measuring) bulk_bytes += (uint64_t) n;
        if (yields(c)) return;
      }
    }
    if (mode != SEND || c->state == HELLO) return;
    c->out_off = 0;
  }
}

static void hello_in(struct conn *c, const char *data, size_t len) {
  for (size_t i = 0; i < len; i++) {
    c->head = data[i] == "\r\n\r\n"[c->head] ? c->head + 1 : data[i] == '\r';
    if (c->head == 4) {
      if (i + 1 != len) fail(c, &mismatched);
      c->state = c->state == DEAD ? DEAD : ACTIVE;
      start(c);
      return;
    }
  }
}

static void pump(struct conn *c) {
  for (;;) {
    if (c->state == DEAD) return;
    size_t len = c->state == HELLO ? hello_len : request_len;
    if (c->out_off < len || mode == SEND) pump_out(c);
    if (c->state == DEAD) return;
    if (mode == SEND && c->state == ACTIVE) return;
    ssize_t n = get(c, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) return;
    if (n < 0 && errno == ECONNREFUSED) {
      fail(c, &refused);
      return;
    }
    if (n <= 0) {
      fail(c, &closed);
      return;
    }
    if (c->state == HELLO) {
      hello_in(c, buffer, (size_t) n);
    } else if (mode == RECV) {
      last_progress = now_ns();
      if (!matches(c->in_off, buffer, (size_t) n)) {
        fail(c, &mismatched);
        return;
      }
      c->in_off = (c->in_off + (size_t) n) % reply_unit;
      if (measuring) bulk_bytes += (uint64_t) n;
      if (yields(c)) return;
    } else {
      if (c->in_off + (size_t) n > reply_len || !matches(c->in_off, buffer, (size_t) n)) {
        fail(c, &mismatched);
        return;
      }
      c->in_off += (size_t) n;
      if (c->in_off == reply_len) {
        finished(c);
        if (mode == ACCEPT) return;   /* a new descriptor: its first event starts it */
      } else if (reply_len > sizeof buffer) {
        last_progress = now_ns();     /* one very large reply is not a stall */
      }
    }
  }
}

static void poll_once(int timeout_ms) {
  struct epoll_event evs[512];
  int n = epoll_wait(epfd, evs, 512, timeout_ms);
  for (int i = 0; i < n; i++) pump(evs[i].data.ptr);
}

static void resend_lost(void) {
  int64_t now = now_ns();
  for (int i = 0; i < nconns; i++) {
    struct conn *c = &conns[i];
    if (c->state == ACTIVE && now - c->started > LOST_NS) {
      if (measuring) lost++;
      start(c);
      pump(c);
    }
  }
}

/* Return false if nothing progressed for STALL_NS, or if every connection is closed. */
static int run_until(int64_t end) {
  int64_t swept = now_ns();
  for (;;) {
    int64_t now = now_ns();
    if (now >= end) return 1;
    if (alive == 0) return 0;
    if (now - last_progress > STALL_NS) {
      stalled += (uint64_t) alive;
      return 0;
    }
    if (kind == UDP && now - swept > LOST_NS / 4) {
      resend_lost();
      swept = now_ns();
    }
    int64_t left = (end - now) / 1000000;
    poll_once((int) (left > 50 ? 50 : left < 1 ? 1 : left));
  }
}

static long rss_before, rss_idle;

/* Return the CPU time of all of the server's processes. */
static int64_t server_cpu_ns(void) {
  int64_t sum = 0;
  for (int i = 0; i < nservers; i++) sum += process_cpu_ns(server_pids[i]);
  return sum;
}

static long server_rss_kib(void) {
  long sum = 0;
  for (int i = 0; i < nservers; i++) sum += process_rss_kib(server_pids[i]);
  return sum;
}

/* Open the idle connections, and wait until the server has processed them, that is until its CPU
 * time no longer grows. RSS is read before and after, once every active connection had a reply. */
static void open_idle(void) {
  rss_before = server_rss_kib();
  for (int i = 0; i < nidle; i++) {
    if (open_socket(1) < 0) {
      refused++;
      if (errno == EMFILE) die("too few file descriptors for the idle connections (ulimit -n)");
    }
    if (i % 256 == 255) poll_once(0);
  }
  int64_t last = -1, deadline = now_ns() + 20000000000;
  while (now_ns() < deadline) {
    int64_t cpu = server_cpu_ns();
    if (last >= 0 && cpu - last < 1000000) break;
    last = cpu;
    usleep(100000);
  }
  rss_idle = server_rss_kib();
  last_progress = now_ns();
}

static uint64_t acknowledged(void) {
  uint64_t sum = 0;
  for (int i = 0; i < nconns; i++) {
    struct conn *c = &conns[i];
    uint64_t got = 0;
    if (c->state != ACTIVE || c->fd < 0) continue;
    fcntl(c->fd, F_SETFL, 0);
    struct timeval tv = {.tv_sec = 10};
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    shutdown(c->fd, SHUT_WR);
    if (recv(c->fd, &got, sizeof got, MSG_WAITALL) == sizeof got) sum += got;
  }
  return sum;
}

static void print_result(double wall, int64_t own, int64_t server, int64_t main_task) {
  static const double at[] = {0.001, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8,
                              0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0};
  printf("{\"ops\": %llu, \"seconds\": %.6f, \"bytes\": %llu, ", (unsigned long long) ops, wall,
         (unsigned long long) bulk_bytes);
  printf("\"errors\": {\"mismatched\": %llu, \"closed\": %llu, \"refused\": %llu, "
         "\"stalled\": %llu, \"lost\": %llu}, ",
         (unsigned long long) mismatched, (unsigned long long) closed, (unsigned long long) refused,
         (unsigned long long) stalled, (unsigned long long) lost);
  printf("\"client_cpu_s\": %.6f, \"server_cpu_s\": %.6f, \"server_main_cpu_s\": %.6f, ",
         (double) own / 1e9, (double) server / 1e9, (double) main_task / 1e9);
  printf("\"rss_before_kib\": %ld, \"rss_idle_kib\": %ld, \"rss_kib\": %ld, \"latency_us\": {",
         rss_before, rss_idle, server_rss_kib());
  for (size_t i = 0; hist.total > 0 && i < sizeof at / sizeof at[0]; i++) {
    printf("%s\"%g\": %.2f", i == 0 ? "" : ", ", at[i] * 100, hist_us(&hist, at[i]));
  }
  printf("}}\n");
}

/* Handshakes and first replies belong to the warm-up, even if that exceeds its planned time. */
static int warm_up(void) {
  last_progress = now_ns();
  int going = run_until(last_progress + (int64_t) (warmup_s * 1e9));
  for (int i = 0; i < nconns && going && (mode == PINGPONG || mode == ACCEPT); i++) {
    while (going && conns[i].state != DEAD && !conns[i].served) going = run_until(now_ns() + 5000000);
  }
  return going;
}

static void measure(void) {
  uint64_t silent = 0;
  int going = warm_up();
  memset(&hist, 0, sizeof hist);
  bulk_bytes = ops = 0;
  int64_t server = server_cpu_ns(), main_task = task_cpu_ns(server_pids[0], server_pids[0]);
  int64_t own = own_cpu_ns(), t0 = now_ns();
  measuring = 1;
  if (going) run_until(t0 + (int64_t) (seconds * 1e9));
  measuring = 0;
  double wall = (double) (now_ns() - t0) / 1e9;
  server = server_cpu_ns() - server;
  main_task = task_cpu_ns(server_pids[0], server_pids[0]) - main_task;
  own = own_cpu_ns() - own;
  for (int i = 0; i < nconns && stalled == 0 && (mode == PINGPONG || mode == ACCEPT); i++) {
    if (conns[i].state != DEAD && now_ns() - conns[i].started > STALL_NS) silent++;
  }
  stalled += silent;
  if (mode == SEND && acknowledged() != sent_total) mismatched++;
  if (mode == SEND || mode == RECV) ops = bulk_bytes / BULK_UNIT;
  print_result(wall, own, server, main_task);
}

/* Parse a comma-separated list of at most *max* numbers; return their count. */
static int numbers(const char *list, int *found, int max) {
  int n = 0;
  while (n < max && *list != '\0') {
    char *end;
    found[n++] = (int) strtol(list, &end, 10);
    list = *end == '\0' ? end : end + 1;
  }
  return n;
}

static void options(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *name = argv[i], *value = argv[i + 1];
    if (strcmp(name, "--kind") == 0) {
      kind = strcmp(value, "unix") == 0 ? UNIX : strcmp(value, "udp") == 0 ? UDP
           : strcmp(value, "pipe") == 0 ? PIPE : strcmp(value, "tls") == 0 ? TLS : TCP;
    } else if (strcmp(name, "--mode") == 0) {
      mode = strcmp(value, "accept") == 0 ? ACCEPT : strcmp(value, "send") == 0 ? SEND
           : strcmp(value, "recv") == 0 ? RECV : PINGPONG;
    } else if (strcmp(name, "--request") == 0) request = read_file(value, &request_len);
    else if (strcmp(name, "--reply") == 0) reply = read_file(value, &reply_unit);
    else if (strcmp(name, "--hello") == 0) hello = read_file(value, &hello_len);
    else if (strcmp(name, "--reply-repeat") == 0) reply_repeat = (size_t) atoi(value);
    else if (strcmp(name, "--host") == 0) host = value;
    else if (strcmp(name, "--port") == 0) port = atoi(value);
    else if (strcmp(name, "--path") == 0) path = value;
    else if (strcmp(name, "--fds") == 0) sscanf(value, "%d,%d", &fds[0], &fds[1]);
    else if (strcmp(name, "--conns") == 0) nconns = atoi(value);
    else if (strcmp(name, "--idle") == 0) nidle = atoi(value);
    else if (strcmp(name, "--warmup") == 0) warmup_s = atof(value);
    else if (strcmp(name, "--seconds") == 0) seconds = atof(value);
    else if (strcmp(name, "--pid") == 0) nservers = numbers(value, server_pids, 16);
    else {
      fprintf(stderr, "client: unknown option %s\n", name);
      exit(3);
    }
  }
  if (request == NULL || reply == NULL) {
    fprintf(stderr, "client: --request and --reply are needed\n");
    exit(3);
  }
  reply_len = reply_unit * reply_repeat;
}

int main(int argc, char **argv) {
  options(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  raise_fd_limit();
  prctl(PR_SET_TIMERSLACK, 1);
#ifdef BENCH_TLS
  ssl_ctx = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_verify(ssl_ctx, SSL_VERIFY_NONE, NULL);
  SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(ssl_ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
#else
  if (kind == TLS) {
    fprintf(stderr, "client: built without OpenSSL\n");
    return 3;
  }
#endif
  epfd = epoll_create1(EPOLL_CLOEXEC);
  conns = calloc((size_t) nconns, sizeof *conns);
  for (int i = 0; i < nconns; i++) begin(&conns[i], 1);
  if (nidle > 0) {
    last_progress = now_ns();
    run_until(last_progress + 200000000);
    open_idle();
  }
  measure();
  return 0;
}
