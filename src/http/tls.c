/*
 * tls.c - see tls.h.
 */
#include "http/tls.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Certificates of a chain, the server's own first. */
#define MAX_CHAIN 16u
#define MAX_FILE (1024L * 1024)

/* One reading of the two files. */
struct pair {
    struct pair *next; /* replaced before this one was */
    int64_t replaced_ns;
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned n_chain;
    gnutls_privkey_t key;
};

struct kve_tls {
    pthread_mutex_t lock;
    char *cert;
    char *key;
    uint32_t handshake_ms;
    struct pair *now;      /* under lock */
    struct pair *replaced; /* the newest first; under lock */
};

static _Thread_local struct kve_tls *used;

static void
pair_destroy(struct pair *pair)
{
    if (pair == NULL)
        return;
    for (unsigned i = 0; i < pair->n_chain; i++)
        gnutls_pcert_deinit(&pair->chain[i]);
    if (pair->key != NULL)
        gnutls_privkey_deinit(pair->key);
    kve_mem_free(pair);
}

/* A whole file with a zero behind it. The caller frees ret->data. */
static kve_status
read_file(const char *path, gnutls_datum_t *ret, struct kve_error *err)
{
    FILE *file = fopen(path, "re");
    kve_status status = KVE_OK;
    uint8_t *data = NULL;
    size_t len = 0;

    if (file == NULL)
        return kve_fail(err, errno == ENOENT ? KVE_E_NOT_FOUND : KVE_E_SYSTEM,
            "TLS file %s: %s", path, strerror(errno));
    data = kve_mem_alloc(MAX_FILE + 1);
    if (data == NULL)
        status = kve_fail_nomem(err, "TLS file");
    else
        len = fread(data, 1, MAX_FILE, file);
    if (status == KVE_OK && ferror(file))
        status = kve_fail(
            err, KVE_E_SYSTEM, "TLS file %s: %s", path, strerror(errno));
    else if (status == KVE_OK && !feof(file))
        status = kve_fail(err, KVE_E_MALFORMED,
            "TLS file %s: more than 1 MiB; PEM is expected", path);
    (void)fclose(file);
    if (status != KVE_OK) {
        kve_mem_free(data);
        return status;
    }
    data[len] = 0;
    ret->data = data;
    ret->size = (unsigned)len;
    return KVE_OK;
}

static kve_status
read_chain(const char *path, struct pair *pair, struct kve_error *err)
{
    gnutls_datum_t text;
    unsigned n = MAX_CHAIN;
    kve_status status = read_file(path, &text, err);
    int rc;

    if (status != KVE_OK)
        return status;
    rc = gnutls_pcert_list_import_x509_raw(pair->chain, &n, &text,
        GNUTLS_X509_FMT_PEM, GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    kve_mem_free(text.data);
    if (rc != GNUTLS_E_SUCCESS || n == 0)
        return kve_fail(err, KVE_E_MALFORMED,
            "TLS certificate %s: %s; a PEM file is expected, the server's "
            "certificate first, then those that signed it",
            path, rc != 0 ? gnutls_strerror(rc) : "no certificate in it");
    pair->n_chain = n;
    return KVE_OK;
}

static kve_status
read_key(const char *path, struct pair *pair, struct kve_error *err)
{
    gnutls_datum_t text;
    kve_status status = read_file(path, &text, err);
    int rc;

    if (status != KVE_OK)
        return status;
    rc = gnutls_privkey_init(&pair->key);
    if (rc == GNUTLS_E_SUCCESS)
        rc = gnutls_privkey_import_x509_raw(
            pair->key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    explicit_bzero(text.data, text.size);
    kve_mem_free(text.data);
    if (rc != GNUTLS_E_SUCCESS)
        return kve_fail(err, KVE_E_MALFORMED,
            "TLS key %s: %s; a PEM file without a password is expected", path,
            gnutls_strerror(rc));
    return KVE_OK;
}

/* Does the key belong to the certificate? */
static bool
fits(const struct pair *pair)
{
    gnutls_pubkey_t pubkey = NULL;
    uint8_t of_key[64];
    uint8_t of_cert[64];
    size_t n_key = sizeof(of_key);
    size_t n_cert = sizeof(of_cert);
    bool same = false;

    if (gnutls_pubkey_init(&pubkey) != GNUTLS_E_SUCCESS)
        return false;
    if (gnutls_pubkey_import_privkey(pubkey, pair->key, 0, 0) ==
            GNUTLS_E_SUCCESS &&
        gnutls_pubkey_get_key_id(pubkey, GNUTLS_KEYID_USE_SHA256, of_key,
            &n_key) == GNUTLS_E_SUCCESS &&
        gnutls_pubkey_get_key_id(pair->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256,
            of_cert, &n_cert) == GNUTLS_E_SUCCESS)
        same = n_key == n_cert && memcmp(of_key, of_cert, n_key) == 0;
    gnutls_pubkey_deinit(pubkey);
    return same;
}

static kve_status
read_pair(const char *cert, const char *key, struct pair **ret_pair,
    struct kve_error *err)
{
    struct pair *pair = kve_mem_zalloc(1, sizeof(*pair));
    kve_status status;

    if (pair == NULL)
        return kve_fail_nomem(err, "TLS certificate");
    status = read_chain(cert, pair, err);
    if (status == KVE_OK)
        status = read_key(key, pair, err);
    if (status == KVE_OK && !fits(pair))
        status = kve_fail(err, KVE_E_MALFORMED,
            "TLS key %s is not the key of the certificate %s", key, cert);
    if (status != KVE_OK) {
        pair_destroy(pair);
        return status;
    }
    *ret_pair = pair;
    return KVE_OK;
}

kve_status
kve_tls_create(const char *cert, const char *key, uint32_t handshake_ms,
    struct kve_tls **ret_tls, struct kve_error *err)
{
    struct kve_tls *tls = kve_mem_zalloc(1, sizeof(*tls));
    kve_status status;

    if (tls == NULL)
        return kve_fail_nomem(err, "TLS");
    (void)pthread_mutex_init(&tls->lock, NULL);
    tls->handshake_ms = handshake_ms;
    tls->cert = kve_mem_strdup(cert);
    tls->key = kve_mem_strdup(key);
    if (tls->cert == NULL || tls->key == NULL)
        status = kve_fail_nomem(err, "TLS");
    else
        status = read_pair(cert, key, &tls->now, err);
    if (status != KVE_OK) {
        kve_tls_destroy(tls);
        return status;
    }
    *ret_tls = tls;
    return KVE_OK;
}

void
kve_tls_destroy(struct kve_tls *tls)
{
    if (tls == NULL)
        return;
    while (tls->replaced != NULL) {
        struct pair *next = tls->replaced->next;

        pair_destroy(tls->replaced);
        tls->replaced = next;
    }
    pair_destroy(tls->now);
    (void)pthread_mutex_destroy(&tls->lock);
    kve_mem_free(tls->cert);
    kve_mem_free(tls->key);
    kve_mem_free(tls);
}

/* Free what no handshake can use any more. */
static void
tidy(struct kve_tls *tls, int64_t now)
{
    struct pair **at = &tls->replaced;

    while (*at != NULL) {
        struct pair *pair = *at;

        if (now - pair->replaced_ns <
            2 * (int64_t)tls->handshake_ms * KVE_MS + 10000 * KVE_MS) {
            at = &pair->next;
            continue;
        }
        *at = pair->next;
        pair_destroy(pair);
    }
}

kve_status
kve_tls_reload(struct kve_tls *tls, struct kve_error *err)
{
    struct pair *pair;
    kve_status status = read_pair(tls->cert, tls->key, &pair, err);
    int64_t now = kve_now_ns();

    if (status != KVE_OK)
        return status;
    (void)pthread_mutex_lock(&tls->lock);
    tls->now->replaced_ns = now;
    tls->now->next = tls->replaced;
    tls->replaced = tls->now;
    tls->now = pair;
    tidy(tls, now);
    (void)pthread_mutex_unlock(&tls->lock);
    return KVE_OK;
}

void
kve_tls_use(struct kve_tls *tls)
{
    used = tls;
}

static int
retrieve(gnutls_session_t session, const gnutls_datum_t *req_ca_rdn, int nreqs,
    const gnutls_pk_algorithm_t *pk_algos, int pk_algos_length,
    gnutls_pcert_st **pcert, unsigned *pcert_length, gnutls_privkey_t *pkey)
{
    struct kve_tls *tls = used;

    (void)session;
    (void)req_ca_rdn;
    (void)nreqs;
    (void)pk_algos;
    (void)pk_algos_length;
    if (tls == NULL)
        return -1;
    (void)pthread_mutex_lock(&tls->lock);
    *pcert = tls->now->chain;
    *pcert_length = tls->now->n_chain;
    *pkey = tls->now->key;
    (void)pthread_mutex_unlock(&tls->lock);
    return 0;
}

void *
kve_tls_callback(void)
{
    gnutls_certificate_retrieve_function2 *function = retrieve;
    void *pointer;

    /* The option table of libmicrohttpd takes it as an object pointer. */
    memcpy(&pointer, &function, sizeof(pointer));
    return pointer;
}
