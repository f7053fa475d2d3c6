from tests.daemons.cluster import Cluster


def test_a_dead_node_is_replaced_and_its_job_trains_on_elsewhere() -> None:
    lab = Cluster()
    job = lab.submit()
    dead = lab.view(job).nodes[0]
    lab.machines.fail(dead)
    took = lab.run_until(lambda: lab.view(job).restart_count == 1 and lab.view(job).status.value == "running")
    print(took, lab.history())
    assert took < 15
    lab.run_until(lab.is_well)
    print(lab.history())
    assert lab.machines.made[dead] == 2
