// ProcessGroupGloo.hpp includes this file and uses nothing of it; see README.md beside `gloo/`.
#pragma once
