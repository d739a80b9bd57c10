"""FlexFlow's Algorithm 1 in plain Python on an explicit task graph: what the compiled simulator is
compared with.
"""

import heapq

import numpy as np

from automap.simulate.tasks import Tasks, Timeline


def simulate_reference(tasks: Tasks) -> Timeline:
    """`simulate` in plain Python."""
    n = len(tasks.seconds)
    first, seconds = tasks.first_predecessor.tolist(), tasks.seconds.tolist()
    before = [tasks.predecessors[first[t] : first[t + 1]].tolist() for t in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for task, predecessors in enumerate(before):
        for predecessor in predecessors:
            after[predecessor].append(task)
    waiting = [len(predecessors) for predecessors in before]
    ready, start, end = [0.0] * n, [0.0] * n, [0.0] * n
    free = [0.0] * tasks.n_resources
    queue = [(0.0, t) for t in range(n) if not waiting[t]]
    heapq.heapify(queue)
    while queue:
        at, task = heapq.heappop(queue)
        ready[task] = at
        resource = int(tasks.resource[task])
        start[task] = max(ready[task], free[resource])
        free[resource] = end[task] = start[task] + seconds[task]
        for follower in after[task]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(queue, (max(end[p] for p in before[follower]), follower))
    return Timeline(
        ready_seconds=np.array(ready), start_seconds=np.array(start), end_seconds=np.array(end)
    )
