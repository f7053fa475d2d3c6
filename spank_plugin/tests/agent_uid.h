/* Takes the place of the accepted uid, so that a test can be the agent, or an impostor. */
#ifndef HP_TEST_AGENT_UID_H
#define HP_TEST_AGENT_UID_H

extern uid_t hp_test_agent_uid;
#define HP_AGENT_UID hp_test_agent_uid

#endif
