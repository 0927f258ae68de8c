"""The keys of a function's `experimental_options` that mean something to somebody."""

OURS = {    # what there is, and what it says
    "finish_window": "seconds that the other ranks have after rank 0 returned",
    "grace_period": "seconds between an interrupt and the kill",
    "inputs_in_step": "False: each rank fetches its next input by itself",
    "priority": "a whole number: whose calls go first, and stop clusters of a lower one",
    "queue": "whose quota its nodes count against",
    "queue_deadline": "seconds that a call may wait for nodes",
}
MODALS = {  # what programs for Modal's own platform say, and what becomes of it here
    "efa_disabled": "a cluster with RDMA gets nodes whose network is not EFA",
    "efa_enabled": "means nothing here",
    "enable_gpu_snapshot": "means nothing here: every container starts fresh",
    "fabric_size": "a cluster in blocks of so many nodes of one NVLink domain; newer clients send it as a field of its own",
    "flash": "means nothing here",
    "max_concurrency": "means nothing here",
    "rdma_enabled": "means nothing here: say rdma=True in @modal.clustered",
}
