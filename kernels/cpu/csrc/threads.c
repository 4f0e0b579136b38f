// A pool of threads that enter a region together, meet at barriers inside it, and sleep when there is nothing to do.
//
// Whoever waits, at a barrier or for the next region, spins for a moment, because what it waits for is usually microseconds away, and
// then sleeps. Sleeping at barriers matters when other processes want the cores: a thread that spins on keeps its core from the very
// thread that it waits for, and a core that falls idle is given to it at once. And an idle server uses no CPU.
// Threads do not survive fork(): the first region run in a child starts them anew.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "octavo.h"

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

enum { SPINS = 3000 };

struct pool {
    // What threads write concurrently is a cache line apart.
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint phase; // barriers completed
    _Alignas(64) atomic_llong item;
    _Alignas(64) atomic_uint generation; // regions started
    atomic_int sleeping;
    atomic_int closing;
    _Alignas(64) pthread_mutex_t callers; // one region at a time
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int count;
    pid_t owner; // process that the threads live in
    pthread_t *threads; // [count - 1]
    worker_t *workers; // [count]; worker 0 is the caller
    region_t region;
    const void *context;
};

// Returns when *word is no longer `old`.
static void wait_for_change(pool_t *pool, atomic_uint *word, uint32_t old) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return;
        RELAX();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(word) == old) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->mutex);
}

// A sleeper counts itself before it looks a last time, and the word changes before the count is read: one of the two sees the other.
static void change(pool_t *pool, atomic_uint *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&pool->sleeping)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

void barrier(worker_t *worker) {
    pool_t *pool = worker->pool;
    const uint32_t phase = worker->phase++;
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->count - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->item, 0, memory_order_relaxed);
        change(pool, &pool->phase);
    } else {
        wait_for_change(pool, &pool->phase, phase);
    }
}

int64_t next_item(worker_t *worker) { return atomic_fetch_add_explicit(&worker->pool->item, 1, memory_order_relaxed); }

span_t share(const worker_t *worker, int64_t num_items) {
    return (span_t){num_items * worker->index / worker->count, num_items * (worker->index + 1) / worker->count};
}

void *scratch(worker_t *worker, size_t bytes) {
    if (bytes > worker->scratch_bytes) {
        free(worker->scratch);
        bytes = (bytes + 4095) / 4096 * 4096;
        worker->scratch = aligned_alloc(64, bytes);
        if (!worker->scratch) {
            fprintf(stderr, "octavo: no memory left for %zu bytes of working space\n", bytes);
            abort(); // the other threads are waiting at a barrier for results that cannot come
        }
        worker->scratch_bytes = bytes;
    }
    return worker->scratch;
}

static void *thread_main(void *argument) {
    worker_t *worker = argument;
    pool_t *pool = worker->pool;
    uint32_t seen = 0;
    for (;;) {
        wait_for_change(pool, &pool->generation, seen);
        seen++;
        if (atomic_load(&pool->closing)) return NULL;
        pool->region(worker, pool->context);
        barrier(worker);
    }
}

// Called with the pool new, or in a child process that inherited its memory but none of its threads.
static void start_threads(pool_t *pool) {
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->phase, 0);
    atomic_store(&pool->item, 0);
    atomic_store(&pool->generation, 0);
    atomic_store(&pool->sleeping, 0);
    pool->owner = getpid();
    for (int i = 0; i < pool->count; i++) {
        worker_t *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        worker->phase = 0;
        if (i > 0 && pthread_create(&pool->threads[i - 1], NULL, thread_main, worker)) {
            pool->count = i; // as many as the system grants
            break;
        }
    }
    for (int i = 0; i < pool->count; i++) pool->workers[i].count = pool->count;
}

pool_t *octavo_pool_create(int32_t num_threads) {
    pool_t *pool = aligned_alloc(64, (sizeof(pool_t) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (pool_t){.count = num_threads < 1 ? 1 : num_threads};
    pool->threads = calloc((size_t)pool->count, sizeof(pthread_t));
    pool->workers = calloc((size_t)pool->count, sizeof(worker_t));
    if (!pool->threads || !pool->workers) return NULL;
    pthread_mutex_init(&pool->callers, NULL);
    start_threads(pool);
    return pool;
}

void octavo_pool_destroy(pool_t *pool) {
    if (pool->owner == getpid()) {
        atomic_store(&pool->closing, 1);
        change(pool, &pool->generation);
        for (int i = 1; i < pool->count; i++) pthread_join(pool->threads[i - 1], NULL);
    }
    for (int i = 0; i < pool->count; i++) free(pool->workers[i].scratch);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

int64_t octavo_pool_scratch_bytes(const pool_t *pool) {
    int64_t total = 0;
    for (int i = 0; i < pool->count; i++) total += (int64_t)pool->workers[i].scratch_bytes;
    return total;
}

void pool_run(pool_t *pool, const step_t *step, region_t region, const void *context) {
    if (pool->owner != getpid()) {
        pthread_mutex_init(&pool->callers, NULL); // a thread of the parent may have held it
        start_threads(pool);
    }
    pthread_mutex_lock(&pool->callers);
    pool->region = region;
    pool->context = context;
    for (int i = 0; i < pool->count; i++) pool->workers[i].step = step;
    if (pool->count > 1) change(pool, &pool->generation);
    region(&pool->workers[0], context);
    barrier(&pool->workers[0]);
    pthread_mutex_unlock(&pool->callers);
}
