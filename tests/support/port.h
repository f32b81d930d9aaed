/*
 * port.h - a TCP port of loopback that a test can bind, leave and bind again.
 *
 * A port that the system chooses (port 0) may be given to any program's
 * outgoing connection as soon as it is left. Those below the system's range
 * for that are only taken by who asks for them.
 */
#ifndef KVE_TESTS_SUPPORT_PORT_H
#define KVE_TESTS_SUPPORT_PORT_H

unsigned test_port_to_keep(void);

#endif
