"""The C types of the classes in `decode.py`, which Cython reads with it. What has none is a Python object."""

cimport cython

@cython.final
cdef class _Headroom:
    cdef object buffer
    cdef Py_ssize_t capacity
    cdef unsigned char* bytes
    cdef int* ints
    cdef long long* longs
    cdef float* floats
    cdef double* doubles
    cdef void point_to(self, buffer)
    cdef inline bint has(self, Py_ssize_t size) noexcept nogil
    cdef void require(self, Py_ssize_t size)
    cdef bint grow(self, Py_ssize_t size) noexcept with gil
    cdef finish(self, Py_ssize_t size)

cdef class Column:
    cdef _Headroom validity
    cdef Py_ssize_t rows, nulls
    cdef int append_null(self) noexcept nogil
    cdef void truncate(self, Py_ssize_t rows) noexcept nogil
    cdef finish_validity(self)

@cython.final
cdef class Nulls(Column):
    pass

@cython.final
cdef class Bits(Column):
    cdef _Headroom data
    cdef inline int append(self, bint value) noexcept nogil

@cython.final
cdef class Fixed(Column):
    cdef _Headroom data
    cdef Py_ssize_t width
    cdef inline bint has_headroom(self) noexcept nogil

cdef class Ended(Column):
    cdef _Headroom ends
    cdef void begin(self)

@cython.final
cdef class Binary(Ended):
    cdef _Headroom data
    cdef Py_ssize_t used
    cdef inline int has_headroom(self, Py_ssize_t length) noexcept nogil
    cdef inline int append(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t length) noexcept nogil
    cdef inline void close(self, Py_ssize_t length) noexcept nogil

cdef class _Table:
    cdef list kept
    cdef object addresses
    cdef void** items
    cdef Py_ssize_t count

@cython.final
cdef class Struct(Column):
    cdef _Table children

@cython.final
cdef class Lists(Ended):
    cdef Column child
    cdef inline int append(self) noexcept nogil

@cython.final
cdef class Dense(Column):
    cdef _Table branches
    cdef _Headroom kinds, places, counts
    cdef Py_ssize_t null_branch
    cdef void begin(self)
    cdef inline int append(self, Py_ssize_t branch) noexcept nogil

@cython.final
cdef class Symbols(Column):
    cdef Fixed indices
    cdef object symbols

@cython.final
cdef class Budget:
    cdef long long empty_items
    cdef int depth
    cdef inline void begin(self) noexcept nogil
    cdef inline bint has_empty(self, long long count) noexcept nogil

cdef class Step:
    cdef Py_ssize_t place
    cdef Py_ssize_t read(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    cdef inline Py_ssize_t bad(self, int code) noexcept nogil
    cdef inline Py_ssize_t after(self, int status, Py_ssize_t at) noexcept nogil

cdef class ReadNull(Step):
    cdef Column column

cdef class ReadBoolean(Step):
    cdef Bits column

cdef class IntoFixed(Step):
    cdef Fixed column

cdef class ReadInt(IntoFixed):
    cdef long long least, most
    cdef bint is_long
    cdef int wrong

cdef class ReadIntAsFloat(IntoFixed):
    cdef long long least, most
    cdef bint is_double

cdef class ReadFloatAsDouble(IntoFixed):
    pass

cdef class ReadBytes(IntoFixed):
    pass

cdef class ReadBinary(Step):
    cdef Binary column
    cdef bint is_text

cdef class ReadDecimal(IntoFixed):
    cdef Py_ssize_t size
    cdef bytes most, least
    cdef const unsigned char* greatest
    cdef const unsigned char* smallest
    cdef bint fits(self, Py_ssize_t to, unsigned char sign) noexcept nogil

cdef class ReadUuid(Step):
    cdef Binary column

cdef class ReadDuration(IntoFixed):
    pass

cdef class ReadEnum(Step):
    cdef Symbols column
    cdef _Headroom numbers
    cdef long long count

cdef class SkipSteps(Step):
    cdef _Table steps

cdef class ReadFields(SkipSteps):
    cdef Struct column

cdef class SkipItems(Step):
    cdef Step item
    cdef Py_ssize_t least
    cdef Budget budget
    cdef Py_ssize_t read_block(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end, long long count) noexcept nogil

cdef class ReadItems(SkipItems):
    cdef Lists column
    cdef Binary keys
    cdef Struct entries
    cdef bint has_keys

cdef class ReadBranch(Step):
    cdef _Table branches

cdef class IntoUnion(Step):
    cdef Step step
    cdef Dense column
    cdef Py_ssize_t branch

cdef class Default(Step):
    cdef Step step
    cdef bytes encoded
    cdef const unsigned char* start
    cdef Py_ssize_t size

cdef class SkipRun(Step):
    cdef _Headroom sizes
    cdef Py_ssize_t count

cdef class SkipRecursive(SkipSteps):
    cdef Budget budget
