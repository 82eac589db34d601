create table words (n integer primary key, word text, weight real);
with recursive c(n) as (select 1 union all select n + 1 from c where n < 400)
insert into words select n, char(97 + n % 26, 97 + n * 7 % 26, 97 + n * 11 % 26), n * 0.125 from c;
create index by_word on words (word, weight);
select count(*), sum(weight), group_concat(distinct substr(word, 1, 1)) from words;
select a.word, count(*), avg(b.weight) from words a join words b on a.word = b.word and a.n <> b.n
  group by a.word order by 2 desc, 1 limit 10;
update words set weight = weight * 2 where word like '%a%';
delete from words where n % 3 = 0;
select printf('%08.3f|%s|%x', total(weight), max(word), count(*)) from words;
select n, row_number() over (partition by substr(word, 1, 1) order by weight) from words order by n limit 20;
select json_group_array(json_object('w', word)) from (select word from words order by word limit 5);
begin; insert into words values (1, 'twice', 0); rollback;
pragma integrity_check;
