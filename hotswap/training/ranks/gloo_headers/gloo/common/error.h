// Stand-in for gloo's header, which the torch package lacks: c10d includes it and uses none of it.
#pragma once
