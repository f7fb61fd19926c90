-- The sample shop. Each statement stands after a line `--- <what a person sees meanwhile>`.
-- The same rows on every machine: setseed before each random column set, and no clock.

--- types
CREATE TYPE order_status AS ENUM ('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled');
CREATE TYPE payment_method AS ENUM ('card', 'bank_transfer', 'wallet', 'voucher', 'cash');

--- categories
CREATE TABLE categories (
    id          smallint PRIMARY KEY,
    parent_id   smallint REFERENCES categories (id),
    name        text NOT NULL,
    vat_rate    numeric(4, 2) NOT NULL,
    visible     boolean NOT NULL DEFAULT true
);
INSERT INTO categories
SELECT i, CASE WHEN i > 12 THEN 1 + (i - 13) % 12 END,
       (ARRAY['Books', 'Café & Thé', 'Gärten', 'Spielzeug', 'Électronique', 'Música', '家具', 'Спорт', 'Zdrowie',
              'Ψηφιακά', 'Outdoor', 'Pets 🐾'])[1 + (i - 1) % 12] || CASE WHEN i > 12 THEN ' ' || (i / 12) ELSE '' END,
       (ARRAY[7.00, 19.00, 20.00, 5.50])[1 + i % 4], i % 17 <> 0
FROM generate_series(1, 120) AS i;

--- customers
SELECT setseed(0.11);
CREATE TABLE customers (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id   uuid NOT NULL UNIQUE,
    email       text NOT NULL,
    full_name   text NOT NULL,
    birth_date  date,
    country     char(2) NOT NULL,
    newsletter  boolean NOT NULL,
    tags        text[] NOT NULL DEFAULT '{}',
    last_ip     inet,
    credit      numeric(12, 2) NOT NULL,
    created_at  timestamptz NOT NULL
);
INSERT INTO customers (public_id, email, full_name, birth_date, country, newsletter, tags, last_ip, credit, created_at)
SELECT md5('customer' || i)::uuid,
       'customer' || i || '@' || (ARRAY['example.com', 'example.org', 'example.net'])[1 + i % 3],
       (ARRAY['Ana', 'Björn', 'Chloé', 'Dmitri', 'Émile', 'Fatima', 'Grzegorz', 'Hana', 'Íñigo', 'Jürgen', 'Kōji',
              'Łucja', 'Márta', 'Nuño', 'Oğuz', 'Þóra'])[1 + (random() * 15)::int]
       || ' ' ||
       (ARRAY['Almeida', 'Børgesen', 'Čapek', 'D''Angelo', 'Eriksson', 'Fernández', 'Göransson', 'Ильин', '山田',
              'O''Neill', 'Şahin', 'Østergård'])[1 + (random() * 11)::int],
       CASE WHEN random() < 0.9 THEN date '1945-01-01' + (random() * 22000)::int END,
       (ARRAY['DE', 'FR', 'PL', 'ES', 'SE', 'GB', 'IT', 'JP', 'TR', 'PT'])[1 + (random() * 9)::int],
       random() < 0.4,
       CASE WHEN random() < 0.3 THEN ARRAY['vip', 'since-' || (2015 + i % 10)] ELSE '{}' END,
       CASE WHEN random() < 0.8 THEN inet '10.0.0.0' + (random() * 16000000)::bigint END,
       round((random() * 500 - 50)::numeric, 2),
       timestamptz '2019-01-01 00:00:00+00' + (i * interval '1 minute' * 60) + random() * interval '1 hour'
FROM generate_series(1, 50000) AS i;

--- products
SELECT setseed(0.22);
CREATE TABLE products (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sku          text NOT NULL UNIQUE,
    category_id  smallint NOT NULL REFERENCES categories (id),
    title        text NOT NULL,
    description  text,
    price        numeric(12, 2) NOT NULL,
    weight_kg    real,
    attributes   jsonb NOT NULL,
    sizes        integer[],
    handling     interval NOT NULL,
    active       boolean NOT NULL,
    updated_at   timestamptz NOT NULL
);
INSERT INTO products (sku, category_id, title, description, price, weight_kg, attributes, sizes, handling, active,
                      updated_at)
SELECT 'SKU-' || lpad(i::text, 6, '0'), 1 + (random() * 119)::int, 'Product № ' || i,
       CASE WHEN random() < 0.8 THEN repeat('Fine, honest goods. ', 1 + (random() * 8)::int) END,
       round((1 + random() * 900)::numeric, 2),
       CASE WHEN random() < 0.9 THEN (random() * 30)::real END,
       jsonb_build_object('colour', (ARRAY['red', 'grün', '青', 'noir'])[1 + (random() * 3)::int],
                          'warranty_months', 12 * (1 + (random() * 4)::int), 'recycled', random() < 0.2),
       CASE WHEN random() < 0.5 THEN ARRAY[36, 38, 40 + i % 6] END,
       make_interval(hours => 4 + (random() * 92)::int),
       random() < 0.93,
       timestamptz '2024-01-01 00:00:00+00' + random() * interval '600 days'
FROM generate_series(1, 5000) AS i;

--- orders
SELECT setseed(0.33);
CREATE TABLE orders (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id  bigint NOT NULL,
    status       order_status NOT NULL,
    ordered_on   date NOT NULL,
    shipping     numeric(12, 2) NOT NULL,
    currency     char(3) NOT NULL,
    gift         boolean NOT NULL,
    note         text,
    delivery     interval,
    created_at   timestamptz NOT NULL
);
INSERT INTO orders (customer_id, status, ordered_on, shipping, currency, gift, note, delivery, created_at)
SELECT 1 + (random() * 49999)::int,
       (enum_range(NULL::order_status))[1 + least(6, (random() * random() * 12)::int)],
       (timestamptz '2021-01-01 00:00:00+00' + i * interval '8 minutes')::date,
       round((random() * 19)::numeric, 2),
       (ARRAY['EUR', 'PLN', 'SEK', 'GBP', 'JPY'])[1 + (random() * random() * 4)::int],
       random() < 0.05,
       CASE WHEN random() < 0.08 THEN 'Bitte beim Nachbarn abgeben – merci! ' || i END,
       CASE WHEN random() < 0.7 THEN make_interval(days => 1 + (random() * 6)::int, mins => (random() * 1400)::int) END,
       timestamptz '2021-01-01 00:00:00+00' + i * interval '8 minutes'
FROM generate_series(1, 250000) AS i;

--- order_items
SELECT setseed(0.44);
CREATE TABLE order_items (
    id          bigint NOT NULL,
    order_id    bigint NOT NULL,
    product_id  integer NOT NULL,
    quantity    smallint NOT NULL,
    unit_price  numeric(12, 2) NOT NULL,
    discount    numeric(5, 4),
    created_at  timestamptz NOT NULL
);
INSERT INTO order_items
SELECT i, 1 + (i - 1) / 4, 1 + (random() * 4999)::int, 1 + (random() * random() * 9)::int,
       round((1 + random() * 900)::numeric, 2),
       CASE WHEN random() < 0.15 THEN round((random() * 0.5)::numeric, 4) END,
       timestamptz '2021-01-01 00:00:00+00' + ((i + 3) / 4) * interval '8 minutes'
FROM generate_series(1, 1000000) AS i;

--- payments
SELECT setseed(0.55);
CREATE TABLE payments (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id    bigint NOT NULL,
    method      payment_method NOT NULL,
    amount      numeric(12, 2) NOT NULL,
    fee         double precision,
    reference   uuid NOT NULL,
    settled     boolean,
    updated_at  timestamptz NOT NULL
);
INSERT INTO payments (order_id, method, amount, fee, reference, settled, updated_at)
SELECT i, (enum_range(NULL::payment_method))[1 + (random() * random() * 4)::int],
       round((5 + random() * 2000)::numeric, 2), CASE WHEN random() < 0.6 THEN random() * 3 END,
       md5('payment' || i)::uuid, CASE WHEN random() < 0.97 THEN random() < 0.9 END,
       timestamptz '2021-01-01 00:00:00+00' + i * interval '8 minutes' + random() * interval '2 days'
FROM generate_series(1, 240000) AS i;

--- events
SELECT setseed(0.66);
CREATE TABLE events (
    id           uuid NOT NULL,
    customer_id  bigint,
    kind         text NOT NULL,
    payload      jsonb NOT NULL,
    client_ip    inet,
    took         interval,
    occurred_at  timestamptz NOT NULL
);
INSERT INTO events
SELECT md5('event' || i)::uuid, CASE WHEN random() < 0.7 THEN 1 + (random() * 49999)::int END,
       (ARRAY['view', 'search', 'cart', 'checkout', 'login'])[1 + (random() * random() * 4)::int],
       jsonb_build_object('path', '/p/' || (random() * 5000)::int, 'ms', (random() * 900)::int,
                          'q', CASE WHEN i % 5 = 0 THEN 'kaffee ☕ ' || i % 97 END),
       CASE WHEN random() < 0.9 THEN inet '172.16.0.0' + (random() * 1000000)::bigint END,
       random() * interval '90 seconds',
       timestamptz '2025-01-01 00:00:00+00' + i * interval '97 seconds'
FROM generate_series(1, 300000) AS i;

--- keys
ALTER TABLE order_items ADD PRIMARY KEY (id);
ALTER TABLE events ADD PRIMARY KEY (id);
CREATE INDEX payments_updated_at ON payments (updated_at);
ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers (id);
ALTER TABLE order_items ADD FOREIGN KEY (order_id) REFERENCES orders (id);
ALTER TABLE order_items ADD FOREIGN KEY (product_id) REFERENCES products (id);
ALTER TABLE payments ADD FOREIGN KEY (order_id) REFERENCES orders (id);

--- statistics
ANALYZE;
