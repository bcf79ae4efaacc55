"""Advantage actor-critic with several environments, and a Gaussian policy."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal
from torch.optim import RMSprop
from torch.optim.lr_scheduler import LinearLR

NUM_ENVS, NUM_STEPS, UPDATES = 8, 10, 15
GAMMA, LAMBDA, ENTROPY, VALUE = 0.97, 0.95, 0.01, 0.5


class PointEnv:
    """Points that an action pushes; the reward is minus the distance from the origin."""

    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.pos = torch.rand(self.n, 2) * 2 - 1
        self.t = 0
        return self.pos.clone()

    def step(self, action):
        self.pos = (self.pos + 0.2 * action.clamp(-1, 1)).clamp_(-2, 2)
        self.t += 1
        reward = -self.pos.norm(dim=-1)
        done = torch.full((self.n,), self.t >= 16)
        if done.all():
            self.reset()
        return self.pos.clone(), reward, done


def layer_init(layer, std=2**0.5, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0)
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 32)), nn.Tanh(), layer_init(nn.Linear(32, act_dim), 0.01)
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        mean = self.actor_mean(x)
        std = torch.exp(self.actor_logstd.expand_as(mean))
        probs = Normal(mean, std)
        if action is None:
            action = probs.sample()
        log_prob = probs.log_prob(action).sum(1)
        return action, log_prob, probs.entropy().sum(1), self.critic(x)


torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
env = PointEnv(NUM_ENVS)
agent = ActorCritic(2, 2).to(device)
optimizer = RMSprop(agent.parameters(), lr=7e-3, alpha=0.99, eps=1e-5)
scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=UPDATES)
obs = torch.zeros((NUM_STEPS, NUM_ENVS, 2)).to(device)
actions = torch.zeros((NUM_STEPS, NUM_ENVS, 2)).to(device)
rewards = torch.zeros((NUM_STEPS, NUM_ENVS)).to(device)
dones = torch.zeros((NUM_STEPS, NUM_ENVS)).to(device)
values = torch.zeros((NUM_STEPS, NUM_ENVS)).to(device)
next_obs = env.reset().to(device)
for update in range(1, UPDATES + 1):
    for step in range(NUM_STEPS):
        obs[step] = next_obs
        with torch.no_grad():
            action, _, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        next_obs, reward, done = env.step(action)
        rewards[step] = reward.view(-1)
        dones[step] = done.float()
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards)
        lastgaelam = 0
        for t in reversed(range(NUM_STEPS)):
            following = next_value if t == NUM_STEPS - 1 else values[t + 1]
            nonterminal = 1.0 - dones[t]
            delta = rewards[t] + GAMMA * following * nonterminal - values[t]
            advantages[t] = lastgaelam = delta + GAMMA * LAMBDA * nonterminal * lastgaelam
        returns = advantages + values
    b_adv = advantages.reshape(-1)
    b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)
    _, logp, entropy, new_value = agent.get_action_and_value(
        obs.reshape((-1, 2)), actions.reshape((-1, 2))
    )
    pg_loss = -(logp * b_adv).mean()
    v_loss = F.mse_loss(new_value.view(-1), returns.view(-1))
    loss = pg_loss - ENTROPY * entropy.mean() + VALUE * v_loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    if update % 3 == 0:
        explained = 1 - (returns - values).var() / returns.var()
        print(
            f"update {update}: reward {rewards.mean():.4f}, value loss {v_loss.item():.4f}, "
            f"entropy {entropy.mean().item():.4f}, explained variance {explained.item():.3f}"
        )
print("std", agent.actor_logstd.exp().detach().cpu().numpy().round(3))
