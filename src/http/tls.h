/*
 * tls.h - the certificate that new connections are shown.
 *
 * The library asks for a certificate at each handshake, so that a file read
 * again counts from the next connection on, and those that stand go on. It
 * gives the asker no context of ours: the thread that shakes hands says
 * before whose certificate it shows (kve_tls_use()).
 *
 * A handshake may still use what was read before for as long as it lasts,
 * which the server bounds: what was replaced is freed by a later reading, when
 * it is older than that.
 *
 * Threads: kve_tls_use() says it for the calling thread; the rest any thread.
 */
#ifndef KVE_HTTP_TLS_H
#define KVE_HTTP_TLS_H

#include <kvevents/status.h>

#include <stdint.h>

struct kve_tls;

/* What the library may speak: TLS 1.2 and 1.3. */
#define KVE_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* PEM files; handshake_ms: how long one takes at most. KVE_OK, KVE_E_NOT_FOUND,
 * KVE_E_MALFORMED (its contents; the key is not the certificate's),
 * KVE_E_NOMEM, KVE_E_SYSTEM. */
kve_status kve_tls_create(const char *cert, const char *key,
    uint32_t handshake_ms, struct kve_tls **ret_tls, struct kve_error *err);
void kve_tls_destroy(struct kve_tls *tls);

/* Read the files again; on failure what there is stays. */
kve_status kve_tls_reload(struct kve_tls *tls, struct kve_error *err);

/* Handshakes of this thread show tls's certificate. */
void kve_tls_use(struct kve_tls *tls);

/* The library's callback: a gnutls_certificate_retrieve_function2. */
void *kve_tls_callback(void);

#endif
