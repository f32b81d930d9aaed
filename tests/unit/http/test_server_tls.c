/*
 * TLS: versions, a certificate that is read again, garbage, wrong files.
 *
 * ctest-timeout: 180
 */
#include "web.h"

#include "http/tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char folder[64];
static char cert_path[96];
static char key_path[96];

static void
write_file(const char *path, const void *data, size_t len)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

/* A key, and a certificate of name that it signs itself. */
static void
make_pair(const char *name, bool write_key)
{
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t cert;
    gnutls_datum_t text;
    const char serial = 7;

    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                         GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
        0);
    assert_int_equal(gnutls_x509_crt_init(&cert), 0);
    assert_int_equal(gnutls_x509_crt_set_version(cert, 3), 0);
    assert_int_equal(gnutls_x509_crt_set_serial(cert, &serial, 1), 0);
    assert_int_equal(
        gnutls_x509_crt_set_activation_time(cert, time(NULL) - 3600), 0);
    assert_int_equal(
        gnutls_x509_crt_set_expiration_time(cert, time(NULL) + 86400), 0);
    assert_int_equal(gnutls_x509_crt_set_key(cert, key), 0);
    assert_int_equal(
        gnutls_x509_crt_set_dn_by_oid(
            cert, GNUTLS_OID_X520_COMMON_NAME, 0, name, (unsigned)strlen(name)),
        0);
    assert_int_equal(
        gnutls_x509_crt_sign2(cert, cert, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(
        gnutls_x509_crt_export2(cert, GNUTLS_X509_FMT_PEM, &text), 0);
    write_file(cert_path, text.data, text.size);
    gnutls_free(text.data);
    if (write_key) {
        assert_int_equal(
            gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &text), 0);
        write_file(key_path, text.data, text.size);
        gnutls_free(text.data);
    }
    gnutls_x509_crt_deinit(cert);
    gnutls_x509_privkey_deinit(key);
}

static int
make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/kvevents-tls-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(cert_path, sizeof(cert_path), "%s/cert.pem", folder);
    (void)snprintf(key_path, sizeof(key_path), "%s/key.pem", folder);
    return 0;
}

static int
remove_folder(void **state)
{
    (void)state;
    (void)unlink(cert_path);
    (void)unlink(key_path);
    return rmdir(folder);
}

/* ---- a client ---- */

struct client {
    int fd;
    gnutls_session_t session;
    gnutls_certificate_credentials_t credentials;
};

/* The handshake's result. */
static int
client_open(struct client *client, uint16_t port, const char *priorities)
{
    int rc;

    client->fd = web_connect(port);
    assert_true(client->fd >= 0);
    assert_int_equal(
        gnutls_certificate_allocate_credentials(&client->credentials), 0);
    assert_int_equal(gnutls_init(&client->session, GNUTLS_CLIENT), 0);
    assert_int_equal(
        gnutls_priority_set_direct(client->session, priorities, NULL), 0);
    assert_int_equal(gnutls_credentials_set(client->session,
                         GNUTLS_CRD_CERTIFICATE, client->credentials),
        0);
    gnutls_transport_set_int(client->session, client->fd);
    gnutls_handshake_set_timeout(client->session, 60000);
    do
        rc = gnutls_handshake(client->session);
    while (rc < 0 && gnutls_error_is_fatal(rc) == 0);
    return rc;
}

static void
client_close(struct client *client)
{
    gnutls_deinit(client->session);
    gnutls_certificate_free_credentials(client->credentials);
    (void)close(client->fd);
}

/* The name in the certificate that was shown. */
static void
client_name(struct client *client, char *name, size_t size)
{
    unsigned n;
    const gnutls_datum_t *chain =
        gnutls_certificate_get_peers(client->session, &n);
    gnutls_x509_crt_t cert;

    assert_non_null(chain);
    assert_int_equal(gnutls_x509_crt_init(&cert), 0);
    assert_int_equal(
        gnutls_x509_crt_import(cert, &chain[0], GNUTLS_X509_FMT_DER), 0);
    assert_int_equal(gnutls_x509_crt_get_dn_by_oid(
                         cert, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &size),
        0);
    gnutls_x509_crt_deinit(cert);
}

static void
client_send(struct client *client, const char *text)
{
    size_t len = strlen(text);

    while (len != 0) {
        ssize_t n = gnutls_record_send(client->session, text, len);

        if (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED)
            continue;
        assert_true(n > 0);
        text += n;
        len -= (size_t)n;
    }
}

/* Read until text comes. */
static void
client_expect(struct client *client, const char *text)
{
    char data[8192] = "";
    size_t len = 0;

    while (strstr(data, text) == NULL) {
        ssize_t n = gnutls_record_recv(
            client->session, data + len, sizeof(data) - 1 - len);

        if (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED)
            continue;
        if (n <= 0)
            fail_msg("%s before \"%s\" came", gnutls_strerror((int)n), text);
        len += (size_t)n;
        data[len] = '\0';
    }
}

#define HELLO "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"

static struct kve_service_opts
tls_opts(void)
{
    struct kve_service_opts opts = web_opts();

    opts.tls_cert = cert_path;
    opts.tls_key = key_path;
    return opts;
}

/* ---- tests ---- */

static void
test_versions(void **state)
{
    static const struct {
        const char *priorities;
        bool works;
    } rows[] = {
        { "NORMAL:-VERS-ALL:+VERS-TLS1.3", true },
        { "NORMAL:-VERS-ALL:+VERS-TLS1.2", true },
        { "NORMAL:-VERS-ALL:+VERS-TLS1.1:%COMPAT", false },
        { "NORMAL", true },
    };
    struct kve_service_opts opts = tls_opts();
    struct web web;

    (void)state;
    make_pair("one", true);
    web_start(&web, &opts);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client client;
        int rc = client_open(&client, web.port, rows[i].priorities);

        if ((rc == 0) != rows[i].works)
            fail_msg("%s: %s", rows[i].priorities, gnutls_strerror(rc));
        for (int j = 0; rc == 0 && j < 3; j++) {
            client_send(&client, HELLO);
            client_expect(&client, "\r\n\r\nhello");
        }
        client_close(&client);
    }
    web_stop(&web);
}

/* Large bodies and answers, streams and waiting streams, over TLS. */
static void
test_bodies(void **state)
{
    struct kve_service_opts opts = tls_opts();
    struct client client;
    struct web web;
    char *body = malloc(200001);

    (void)state;
    assert_non_null(body);
    memset(body, 'x', 200000);
    body[200000] = '\0';
    make_pair("one", true);
    web_start(&web, &opts);
    assert_int_equal(client_open(&client, web.port, "NORMAL"), 0);
    client_send(&client,
        "POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n");
    client_send(&client, body);
    client_expect(&client, "\r\n\r\n200000");
    client_send(&client, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&client, "\r\n\r\n");
    for (int i = 0; i < 10; i++) {
        web_release(&web);
        client_expect(&client, "line ");
    }
    client_close(&client);
    free(body);
    web_stop(&web);
}

/* A new certificate counts for new connections; those that stand go on. */
static void
test_reload(void **state)
{
    struct kve_service_opts opts = tls_opts();
    struct client old;
    struct client new;
    struct kve_error err;
    struct web web;
    char name[64];

    (void)state;
    make_pair("one", true);
    web_start(&web, &opts);
    assert_int_equal(client_open(&old, web.port, "NORMAL"), 0);
    client_name(&old, name, sizeof(name));
    assert_string_equal(name, "one");

    make_pair("two", true);
    assert_int_equal(kve_server_reload(web.http.server, &err), KVE_OK);
    client_send(&old, HELLO);
    client_expect(&old, "\r\n\r\nhello");
    assert_int_equal(client_open(&new, web.port, "NORMAL"), 0);
    client_name(&new, name, sizeof(name));
    assert_string_equal(name, "two");
    client_close(&new);

    /* The certificate was replaced, the key was not yet. */
    make_pair("three", false);
    assert_int_equal(kve_server_reload(web.http.server, &err), KVE_E_MALFORMED);
    assert_non_null(strstr(err.detail, "is not the key of"));
    assert_int_equal(client_open(&new, web.port, "NORMAL"), 0);
    client_name(&new, name, sizeof(name));
    assert_string_equal(name, "two");
    client_send(&new, HELLO);
    client_expect(&new, "\r\n\r\nhello");
    client_close(&new);
    client_close(&old);
    web_stop(&web);
}

static void
test_wrong_files(void **state)
{
    struct kve_service_opts opts = tls_opts();
    struct kve_error err;
    struct web web;

    (void)state;
    (void)unlink(cert_path);
    assert_int_equal(web_try(&web, &opts, &err), KVE_E_NOT_FOUND);
    assert_non_null(strstr(err.detail, cert_path));
    write_file(cert_path, "nothing", 7);
    assert_int_equal(web_try(&web, &opts, &err), KVE_E_MALFORMED);
    make_pair("one", true);
    write_file(key_path, "nothing", 7);
    assert_int_equal(web_try(&web, &opts, &err), KVE_E_MALFORMED);
    assert_non_null(strstr(err.detail, key_path));
    (void)unlink(key_path);
    assert_int_equal(web_try(&web, &opts, &err), KVE_E_NOT_FOUND);
    opts.tls_cert = "/";
    assert_int_not_equal(web_try(&web, &opts, &err), KVE_OK);
}

/* What is no handshake, and handshakes that stop: closed, and others are
 * served. */
static void
test_garbage(void **state)
{
    static const struct {
        const char *data;
        size_t len;
    } rows[] = {
        { HELLO, sizeof(HELLO) - 1 },
        { "\x16\x03\x01\x40\x00", 5 },
        { "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10 },
        { "\x16", 1 },
        { "\x15\x03\x01\x00\x02\x02\x28", 7 },
        { "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 13 },
        { "\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80", 14 },
    };
    struct kve_service_opts opts = tls_opts();
    struct client client;
    struct web web;
    char data[256];

    (void)state;
    opts.request_time_ms = 1000;
    make_pair("one", true);
    web_start(&web, &opts);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd = web_connect(web.port);

        web_send_bytes(fd, rows[i].data, rows[i].len);
        size_t n = web_some(fd, data, sizeof(data), 60000);
        assert_true(n == 0 || memcmp(data, "HTTP", 4) != 0);
        (void)close(fd);
    }
    assert_int_equal(client_open(&client, web.port, "NORMAL"), 0);
    client_send(&client, HELLO);
    client_expect(&client, "\r\n\r\nhello");
    client_close(&client);
    web_stop(&web);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_garbage),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
