"""Steps of evosax: a population is asked for, its fitness told; no gradient anywhere."""

from functools import partial

from evosax.algorithms import CMA_ES, Open_ES
import jax
import jax.numpy as jnp
import optax


def _policy(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def _stepped(algorithm):
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = jnp.sin(x[:, :1])
    # From zero, a pair of opposite members has one fitness: what moves the mean would be rounding.
    keys = jax.random.split(jax.random.key(3))
    solution = {"w1": jax.random.normal(keys[0], (4, 8)), "w2": jax.random.normal(keys[1], (8, 1))}
    es = algorithm(population_size=16, solution=solution)
    es_params = es.default_params
    state = es.init(jax.random.key(1), solution, es_params)

    @jax.jit
    def step(state, key, x, y):
        key_ask, key_tell = jax.random.split(key)
        population, state = es.ask(key_ask, state, es_params)
        fitness = jax.vmap(lambda p: jnp.mean((_policy(p, x) - y) ** 2))(population)
        state, metrics = es.tell(key_tell, population, fitness, state, es_params)
        return state, metrics["best_fitness"]

    return step, (state, jax.random.key(2), x, y)


def open_es():
    """OpenAI's strategy, which gives its estimate of the gradient to Adam."""
    return _stepped(partial(Open_ES, optimizer=optax.adam(1e-2)))


def cma_es():
    """CMA-ES: a covariance matrix and its eigenvectors."""
    return _stepped(CMA_ES)
