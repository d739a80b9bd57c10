"""Steps of Jraph: padded graphs, a graph network and a convolutional one, with Haiku."""

import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import optax


_GRAPHS = 8


def _graphs():
    """Seven graphs of different sizes, and an eighth that pads."""
    key, graphs = jax.random.key(0), []
    for i in range(_GRAPHS - 1):
        n = 3 + i % 3
        senders = jnp.repeat(jnp.arange(n), n)
        graphs.append(
            jraph.GraphsTuple(
                nodes=jax.random.normal(jax.random.fold_in(key, i), (n, 8)),
                edges=jnp.ones((n * n, 2)),
                senders=senders,
                receivers=jnp.tile(jnp.arange(n), n),
                globals=jnp.zeros((1, 4)),
                n_node=jnp.array([n]),
                n_edge=jnp.array([n * n]),
            )
        )
    return jraph.pad_with_graphs(jraph.batch(graphs), n_node=32, n_edge=128, n_graph=_GRAPHS)


def graph_network():
    """Graphs sorted by a graph network with residuals, as Jraph's example on molecules; the padding
    masked.
    """

    @jraph.concatenated_args
    def mlp(features):
        return hk.nets.MLP([32, 16], activate_final=True)(features)

    def forward(graph):
        embed = jraph.GraphMapFeatures(hk.Linear(16), hk.Linear(16), hk.Linear(16))
        net = jraph.GraphNetwork(update_node_fn=mlp, update_edge_fn=mlp, update_global_fn=mlp)
        return hk.Linear(2)(net(net(embed(graph))).globals)

    model = hk.without_apply_rng(hk.transform(forward))
    graph, labels = _graphs(), jnp.arange(_GRAPHS) % 2
    params = jax.jit(model.init)(jax.random.key(1), graph)
    optimizer = optax.adam(1e-3)

    def compute_loss(params, graph, labels):
        log_prob = jax.nn.log_softmax(model.apply(params, graph)) * jax.nn.one_hot(labels, 2)
        mask = jraph.get_graph_padding_mask(graph)
        return -jnp.sum(log_prob * mask[:, None]) / jnp.sum(mask)

    @jax.jit
    def update(params, opt_state, graph, labels):
        loss, grads = jax.value_and_grad(compute_loss)(params, graph, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, optimizer.init(params), graph, labels)


def graph_convolution():
    """Nodes sorted by two graph convolutions and an attention between them."""

    def forward(graph):
        convolve = jraph.GraphConvolution(hk.Linear(16), add_self_edges=True)
        attend = jraph.GAT(
            attention_query_fn=lambda nodes: hk.Linear(16)(nodes),
            attention_logit_fn=lambda sent, received, edges: jax.nn.leaky_relu(
                hk.Linear(1)(jnp.concatenate([sent, received], -1))
            ),
            node_update_fn=jax.nn.relu,
        )
        graph = convolve(graph)
        graph = attend(graph._replace(nodes=jax.nn.relu(graph.nodes)))
        return jraph.GraphConvolution(hk.Linear(4), add_self_edges=True)(graph).nodes

    model = hk.without_apply_rng(hk.transform(forward))
    graph = _graphs()
    params = jax.jit(model.init)(jax.random.key(1), graph)
    optimizer = optax.adam(1e-2)

    def loss_fn(params, graph, labels):
        logits = model.apply(params, graph)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        mask = jraph.get_node_padding_mask(graph)
        return jnp.sum(losses * mask) / jnp.sum(mask)

    @jax.jit
    def update(params, opt_state, graph, labels):
        loss, grads = jax.value_and_grad(loss_fn)(params, graph, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, optimizer.init(params), graph, jnp.arange(32) % 4)
