import laws_tensor_graphs as laws, pytest
from nnmpi.comm import thread_ranks
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", laws.MODELS)
def test_a_sharded_graph_trains_as_one_rank(name, size):
    thread_ranks.run(size, laws.trains_as_one_rank, name)
