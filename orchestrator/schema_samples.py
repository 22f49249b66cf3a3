class CannotSample(Exception): ...


class Sampler:
    def __init__(self, root, rng, attempt): ...
    def sample(self):
        return {}
