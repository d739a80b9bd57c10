"""Steps of NumPyro: variational inference as `SVI.update` does it, and a kernel of NUTS."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.hmc import hmc
from numpyro.infer.util import initialize_model


def _regression(x, y=None):
    hidden = x.shape[1]
    first = numpyro.sample("first", dist.Normal(jnp.zeros((hidden, 16)), 1.0).to_event(2))
    second = numpyro.sample("second", dist.Normal(jnp.zeros((16, 1)), 1.0).to_event(2))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    mean = (jnp.tanh(x @ first) @ second)[..., 0]
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def _data():
    x = jax.random.normal(jax.random.key(0), (64, 8))
    return x, jnp.sin(x).sum(-1)


def bayesian_network():
    """A Bayesian network under a mean-field guide; the bound method `svi.update`, jitted."""
    x, y = _data()
    svi = SVI(_regression, AutoNormal(_regression), numpyro.optim.Adam(1e-2), Trace_ELBO(4))
    return jax.jit(svi.update), (svi.init(jax.random.key(1), x, y), x, y)


def _schools(group, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("groups", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("data", len(group)):
        numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def hierarchical():
    """Eight groups with partial pooling under a full-rank guide, arguments by keyword."""
    group = jnp.arange(64) % 8
    y = jax.random.normal(jax.random.key(2), (64,)) + group
    guide = AutoMultivariateNormal(_schools)
    svi = SVI(_schools, guide, numpyro.optim.ClippedAdam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.key(3), group, y=y)
    return jax.jit(svi.update), (state, group), {"y": y}


def nuts():
    """One transition of NUTS on the regression, a loop whose length depends on the data."""
    x, y = _data()
    found = initialize_model(jax.random.key(4), _regression, model_args=(x, y), dynamic_args=True)
    init_kernel, sample_kernel = hmc(potential_fn_gen=found.potential_fn, algo="NUTS")
    state = init_kernel(
        found.param_info,
        num_warmup=10,
        max_tree_depth=4,
        rng_key=jax.random.key(5),
        model_args=(x, y),
        inverse_mass_matrix=None,
    )

    @jax.jit
    def step(state, x, y):
        return sample_kernel(state, model_args=(x, y))

    return step, (state, x, y)
